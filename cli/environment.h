/* environment.h - what the command takes from the environment. */
#ifndef ENVIRONMENT_H
#define ENVIRONMENT_H

/* 0, or the exit status after a variable that holds no number where one belongs was reported. */
int environment_check(const char *command_name);
/* Which of several ranks this process is, as whoever started it says; -1: none, or one alone. */
int environment_rank(void);

#endif
