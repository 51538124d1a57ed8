/* What a record leaves out, and how. Private to lib/machine. */
#ifndef PS_MACHINE_RECORD_H
#define PS_MACHINE_RECORD_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Take out of hwloc's XML, in place, every <info> whose name is not known to describe a kind of machine: host names, serial numbers,
 * UUIDs, addresses and whatever later versions add. Returns how many were taken out. */
uint32_t ps_record_scrub_xml(char *xml);

/* Folders of cgroup hierarchies are named after users, containers and pods: each name that is noted gets another, the same
 * everywhere, so that paths still fit together. */
typedef struct ps_record_names ps_record_names;
ps_record_names *ps_record_names_new(void); /* NULL: out of memory */
void ps_record_names_free(ps_record_names *names);
/* Note the names in text of /proc/self/cgroup ("id:controllers:path") or the roots in that of /proc/self/mountinfo. False: out of memory
 * or more than there is room for. */
bool ps_record_names_note(ps_record_names *names, const char *text, bool mountinfo);
/* Copy of a text, from malloc, in which every part of a path that is noted has its other name; NULL: out of memory. */
char *ps_record_rename(const ps_record_names *names, const char *text);

#ifdef __cplusplus
}
#endif
#endif
