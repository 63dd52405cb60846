/* base/pin.h - the cores that a launcher assigned to this process. */
#ifndef LK__PIN_H
#define LK__PIN_H

/* Pins the calling thread, and those that it starts from now on, to the cores in LOCKSTEP_CORES, the kernel's "0-3,8".
 * Nothing where it is not set or not a list of cores, or where the thread may not use all of them: then somebody else
 * has chosen its cores since. */
void lk__pin_to_assigned(void);

#endif
