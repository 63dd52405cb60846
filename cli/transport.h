/* transport.h - the values of --backend: the transports that the library lists. */
#ifndef CLI_TRANSPORT_H
#define CLI_TRANSPORT_H

/* "auto", then those between ranks; NULL past the last. */
const char *transport_of_ranks(int index);
/* The same with those of a single rank. */
const char *transport_of_groups(int index);

#endif
