// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* agent_file.h - a file that `ballast agent` keeps for a server, read and followed: for libraries that servers preload.
 *
 * The environment names the file. A library goes on with what it has read if the file is damaged, or gone. Its user
 * defines _GNU_SOURCE, and holds a lock. */
#ifndef AGENT_FILE_H
#define AGENT_FILE_H

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FILE_MAX 65536
#define TEXT_MAX 160 /* of a value */
#ifndef FOLLOW_SECONDS /* tests look each time */
#define FOLLOW_SECONDS 1
#endif

struct agent_file {
	const char *library, *variable; /* its name, for complaints; the environment's variable */
	const char *forbidden; /* what is said of a file that may not be read */
	const char *as_before, *never; /* how the server goes on: by what was read; before anything was */
	const char *(*take)(const char *text); /* takes over what a file says, and returns 0; or changes nothing, and
						  says what is wrong with it */

	char path[4096];
	int ready; /* something has been taken over */
	struct stat stamp;
	time_t looked;
	const char *complained;
};

static inline void agent_say(const struct agent_file *file, const char *what, const char *then)
{
	char line[4600];
	int length = snprintf(line, sizeof(line), "%s: %s: %s%s%s\n", file->library,
			      file->path[0] ? file->path : file->variable, what, then[0] ? ": " : "", then);

	if (write(STDERR_FILENO, line, length) < 0)
		return;
}

/* Each complaint once, until there is another one; and when there is none any more (0). */
static inline void agent_complain(struct agent_file *file, const char *why)
{
	if (why && why != file->complained)
		agent_say(file, why, file->ready ? file->as_before : file->never);
	if (!why && file->complained)
		agent_say(file, "is read now", "");
	file->complained = why;
}

/* What follows a key of the agent's JSON, which has no objects within objects. 0: it is not there. */
static inline const char *after_key(const char *text, const char *key)
{
	char name[64];
	const char *at = text;

	snprintf(name, sizeof(name), "\"%s\"", key);
	do { /* a value may look like a key */
		at = strstr(at, name);
		if (!at)
			return 0;
		at += strlen(name);
		at += strspn(at, " \t\r\n");
	} while (*at != ':');
	at++;
	return at + strspn(at, " \t\r\n");
}

/* The value of a key, and its length. -1: it is not there; -2: it is none, or too long. */
static inline int value_of(const char *text, const char *key, char value[TEXT_MAX])
{
	const char *at = after_key(text, key);
	size_t length;

	if (!at)
		return -1;
	if (*at == '"') {
		at++;
		length = strcspn(at, "\"");
		if (at[length] != '"')
			return -2;
	} else {
		length = strspn(at, "0123456789");
		if (length == 0)
			return -2;
	}
	if (length >= TEXT_MAX)
		return -2;
	memcpy(value, at, length);
	value[length] = 0;
	return length;
}

static inline int digit(char c)
{
	return c >= '0' && c <= '9'   ? c - '0'
	       : c >= 'a' && c <= 'f' ? c - 'a' + 10
	       : c >= 'A' && c <= 'F' ? c - 'A' + 10
				      : -1;
}

/* How many bytes hexadecimal digits are; -1: they are none, or too many. */
static inline int bytes_of(const char *text, unsigned char *out, int most)
{
	int length = strlen(text) / 2;

	if (strlen(text) % 2 || length > most)
		return -1;
	for (int i = 0; i < length; i++) {
		int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);

		if (high < 0 || low < 0)
			return -1;
		out[i] = high << 4 | low;
	}
	return length;
}

static inline int number_of(const char *text, int most)
{
	char *end;
	long number = strtol(text, &end, 10);

	return !*text || *end || number < 0 || number > most ? -1 : number;
}

/* What is wrong with the file; 0: nothing, and it is in use. */
static inline const char *agent_read(struct agent_file *file)
{
	static char text[FILE_MAX + 1];
	struct stat now;
	const char *wrong;
	ssize_t length;
	int opened = open(file->path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);

	if (opened < 0)
		return errno == ENOENT ? "is not there" : errno == EACCES ? file->forbidden : "cannot be opened";
	if (fstat(opened, &now) || !S_ISREG(now.st_mode) || now.st_size > FILE_MAX) {
		close(opened);
		return "is no file of ballast agent";
	}
	length = read(opened, text, FILE_MAX);
	close(opened);
	if (length < 0)
		return "cannot be read";
	text[length] = 0;
	file->stamp = now;
	wrong = file->take(text);
	explicit_bzero(text, sizeof(text));
	if (!wrong)
		file->ready = 1;
	return wrong;
}

/* Looks for another file, at most once a second. */
static inline void agent_follow(struct agent_file *file)
{
	struct timespec now;
	struct stat there;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	if (!file->path[0] || (file->looked && now.tv_sec - file->looked < FOLLOW_SECONDS))
		return;
	file->looked = now.tv_sec;
	if (!stat(file->path, &there) && there.st_ino == file->stamp.st_ino && there.st_size == file->stamp.st_size &&
	    there.st_mtim.tv_sec == file->stamp.st_mtim.tv_sec && there.st_mtim.tv_nsec == file->stamp.st_mtim.tv_nsec)
		return;
	agent_complain(file, agent_read(file));
}

/* Remembers which file the environment names: a server may clear it. 0: none. */
static inline int agent_begin(struct agent_file *file)
{
	const char *named = getenv(file->variable);

	if (named && strlen(named) < sizeof(file->path))
		strcpy(file->path, named);
	return file->path[0];
}

#endif
