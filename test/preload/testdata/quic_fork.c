/* quic_fork.c - forks while another thread draws a connection id, and while one was handed out last; then looks for the
 * key in the stack of a thread that has read the file. The library is preloaded; stat is what it looks at the file by,
 * so the hook in here is called with the library's lock held. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define ID_LENGTH 20
#define STACK (1 << 20)
#define CHILD_SECONDS 20

static int (*draw)(unsigned char *, int);
static const char *followed;
static atomic_int hold, inside;

/* Stays in the library for as long as a fork without a handler needs. */
int stat(const char *path, struct stat *there)
{
	if (atomic_load(&hold) && !strcmp(path, followed)) {
		atomic_store(&inside, 1);
		usleep(300000);
	}
	return fstatat(AT_FDCWD, path, there, 0);
}

static void *drawing(void *unused)
{
	unsigned char id[ID_LENGTH];

	(void)unused;
	while (draw(id, ID_LENGTH) == 1 && atomic_load(&hold))
		;
	return 0;
}

static int cookie_is(const unsigned char *id)
{
	int s = socket(AF_INET, SOCK_DGRAM, 0);
	socklen_t length = 8;
	uint64_t cookie = 0;

	if (s < 0 || getsockopt(s, SOL_SOCKET, SO_COOKIE, &cookie, &length))
		abort();
	close(s);
	return cookie == __builtin_bswap64(*(const uint64_t *)id);
}

/* A child that blocks is ended by SIGALRM. */
static int child_of(int (*check)(void))
{
	int status = -1;
	pid_t child = fork();

	if (!child) {
		alarm(CHILD_SECONDS);
		_exit(check());
	}
	waitpid(child, &status, 0);
	return status;
}

static unsigned char last[ID_LENGTH];

static int draws(void)
{
	unsigned char id[ID_LENGTH];

	return draw(id, ID_LENGTH) != 1;
}

static int has_none(void)
{
	return cookie_is(last);
}

int main(int count, char **arguments)
{
	const char *key = arguments[2];
	pthread_attr_t attributes;
	pthread_t thread;
	char *stack;
	int status;

	if (count != 4 || !dlopen("libcrypto.so.3", RTLD_NOW | RTLD_GLOBAL) ||
	    !(draw = dlsym(RTLD_DEFAULT, "RAND_bytes")))
		return 10;
	followed = arguments[1];
	if (draw(last, ID_LENGTH) != 1)
		return 12;
	if ((status = child_of(has_none))) {
		fprintf(stderr, "the child was given an id of its parent: %x\n", status);
		return 1;
	}
	atomic_store(&hold, 1);
	pthread_create(&thread, 0, drawing, 0);
	while (!atomic_load(&inside))
		;
	if ((status = child_of(draws))) {
		fprintf(stderr, "a child that was forked meanwhile does not get an id: %x\n", status);
		return 1;
	}
	atomic_store(&hold, 0);
	pthread_join(thread, 0);

	if (rename(arguments[3], followed))
		return 11;
	stack = mmap(0, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_attr_init(&attributes);
	pthread_attr_setstack(&attributes, stack, STACK);
	pthread_create(&thread, &attributes, drawing, 0);
	pthread_join(thread, 0);
	if (memmem(stack, STACK, key, strlen(key))) {
		fprintf(stderr, "the key is on the stack\n");
		return 1;
	}
	return 0;
}
