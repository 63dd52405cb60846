/* pager.h - shows long texts through a pager on a terminal. */
#ifndef PAGER_H
#define PAGER_H

#include <stdio.h>

/* Where a long text is printed: a pager if standard output is a terminal and there is one (PAGER, else less), else
 * standard output. Give it to pager_close, which waits until the reader has finished. */
FILE *pager_open(void);
void  pager_close(FILE *out);

#endif
