// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* quic.c - LD_PRELOAD for servers that draw their QUIC connection ids as RAND_bytes(.., 20), as nginx does: the ids
 * name the server (draft-ietf-quic-load-balancers-21), by the file that `ballast agent` keeps. docs/features/quic.md
 * says how it is used.
 *
 * The environment names the file: BALLAST_QUIC=PATH. It is followed: a server goes on with what it has read if it is
 * damaged, or gone. Until it has been read, ids are the server's own. Ids shorter than 20 bytes have random ones behind
 * them, which load balancers do not read. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <endian.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/socket.h>

#include "agent_file.h"

#define ID_LENGTH 20 /* of nginx: NGX_QUIC_SERVER_CID_LEN */
#define BLOCK 16

enum algorithm { SINGLE_PASS, FOUR_PASS, PLAIN };

struct ids {
	enum algorithm algorithm;
	unsigned char config, key[BLOCK], server[8];
	int server_length, nonce_length;
};

static const char *take(const char *text);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ids current;
static struct agent_file file = {
	.library = "ballast-quic",
	.variable = "BALLAST_QUIC",
	.forbidden = "may not be read (ballast agent --quic-group)",
	.as_before = "connection ids are made as before",
	.never = "connection ids name no server",
	.take = take,
};

/* OpenSSL's, of the server: nothing of it is needed to build this. */
static int (*real_bytes)(unsigned char *, int);
static int (*real_getsockopt)(int, int, int, void *, socklen_t *);
static void *(*cipher_new)(void);
static const void *(*cipher_aes)(void);
static int (*cipher_init)(void *, const void *, void *, const unsigned char *, const unsigned char *);
static int (*cipher_update)(void *, unsigned char *, int *, const unsigned char *, int);
static int (*cipher_padding)(void *, int);
static void *cipher;

/* A function of OpenSSL's: also where only a module of the program has loaded it, and nobody else sees it. */
static void *find(const char *name)
{
	static const char *const libraries[] = { "libcrypto.so.3", "libcrypto.so.1.1" };
	void *found = dlsym(RTLD_NEXT, name);

	for (unsigned i = 0; !found && i < sizeof(libraries) / sizeof(*libraries); i++) {
		void *library = dlopen(libraries[i], RTLD_LAZY | RTLD_NOLOAD);

		if (library)
			found = dlsym(library, name);
	}
	return found;
}

/* 0: this process has no OpenSSL, or none yet. */
static int find_all(void)
{
	if (!real_bytes)
		real_bytes = find("RAND_bytes");
	if (!real_bytes)
		return 0;
	if (!cipher_new) {
		cipher_aes = find("EVP_aes_128_ecb");
		cipher_init = find("EVP_EncryptInit_ex");
		cipher_update = find("EVP_EncryptUpdate");
		cipher_padding = find("EVP_CIPHER_CTX_set_padding");
		if (cipher_aes && cipher_init && cipher_update && cipher_padding)
			cipher_new = find("EVP_CIPHER_CTX_new");
	}
	return 1;
}

/* What was handed out last on this thread, for getsockopt. */
static __thread unsigned char last[ID_LENGTH];
static __thread int fresh;

/* What is wrong with the text; 0: nothing, and it is in *ids. The caller wipes key. */
static const char *parse(const char *text, char key[TEXT_MAX], struct ids *ids)
{
	char algorithm[TEXT_MAX], config[TEXT_MAX], server[TEXT_MAX], nonce[TEXT_MAX];
	int number, both;

	if (value_of(text, "algorithm", algorithm) < 0 || value_of(text, "config", config) < 0 ||
	    value_of(text, "key", key) < 0 || value_of(text, "server_id", server) < 0 ||
	    value_of(text, "nonce_length", nonce) < 0)
		return "is no file of ballast agent";
	if (!strcmp(algorithm, "single-pass"))
		ids->algorithm = SINGLE_PASS;
	else if (!strcmp(algorithm, "four-pass"))
		ids->algorithm = FOUR_PASS;
	else if (!strcmp(algorithm, "plain"))
		ids->algorithm = PLAIN;
	else
		return "has an algorithm that is not known here";
	number = number_of(config, 6);
	ids->config = number;
	ids->server_length = bytes_of(server, ids->server, sizeof(ids->server));
	ids->nonce_length = number_of(nonce, ID_LENGTH - 1);
	both = ids->server_length + ids->nonce_length;
	if (number < 0 || ids->server_length < 1 || ids->nonce_length < 4 || both > ID_LENGTH - 1 ||
	    bytes_of(key, ids->key, BLOCK) != BLOCK ||
	    (ids->algorithm == SINGLE_PASS) != (both == BLOCK && ids->algorithm != PLAIN) ||
	    (ids->algorithm == FOUR_PASS && ids->server_length > (both + 1) / 2))
		return "has values that do not fit together";
	return 0;
}

/* AES-128 of one block in place, with the key in use. */
static int encrypt(unsigned char block[BLOCK])
{
	int length = 0;

	return cipher_update(cipher, block, &length, block, BLOCK) == 1 && length == BLOCK;
}

static int use_key(const unsigned char key[BLOCK])
{
	if (!cipher && cipher_new)
		cipher = cipher_new();
	return cipher && cipher_init(cipher, cipher_aes(), 0, key, 0) == 1 && cipher_padding(cipher, 0) == 1;
}

static const char *take(const char *text)
{
	struct ids ids = {};
	char key[TEXT_MAX];
	const char *wrong = parse(text, key, &ids);

	if (!wrong && ids.algorithm != PLAIN && !use_key(ids.key))
		wrong = "has a key, and this program has no AES of OpenSSL";
	if (!wrong)
		current = ids;
	explicit_bzero(&ids, sizeof(ids));
	explicit_bzero(key, sizeof(key));
	return wrong;
}

/* One of the four passes (draft, 5.4.2): `from` is mixed into `to`. */
static int pass(const unsigned char *from, unsigned char *to, int half, int length, int number)
{
	unsigned char mixed[BLOCK] = {};

	memcpy(mixed, from, half);
	mixed[14] = length;
	mixed[15] = number;
	if (!encrypt(mixed))
		return 0;
	for (int i = 0; i < half; i++)
		to[i] ^= mixed[i];
	return 1;
}

static int four_passes(unsigned char *text, int length)
{
	unsigned char left[BLOCK] = {}, right[BLOCK] = {};
	int half = (length + 1) / 2, odd = length % 2;

	memcpy(left, text, half);
	memcpy(right, text + length - half, half);
	for (int number = 0; number <= 4; number++) {
		if (number &&
		    !(number % 2 ? pass(left, right, half, length, number) : pass(right, left, half, length, number)))
			return 0;
		if (odd) { /* the byte in the middle belongs to both, by four bits */
			left[half - 1] &= 0xf0;
			right[0] &= 0x0f;
		}
	}
	memcpy(text + length - half, right, half);
	if (odd)
		left[half - 1] |= right[0];
	memcpy(text, left, half);
	return 1;
}

/* Makes an id of random bytes. 0: it cannot be, and they are as they were. */
static int make(unsigned char id[ID_LENGTH])
{
	unsigned char made[ID_LENGTH];
	int length = current.server_length + current.nonce_length;

	memcpy(made, id, ID_LENGTH);
	made[0] = current.config << 5 | (ID_LENGTH - 1);
	memcpy(made + 1, current.server, current.server_length);
	if (current.algorithm == SINGLE_PASS && !encrypt(made + 1))
		return 0;
	if (current.algorithm == FOUR_PASS && !four_passes(made + 1, length))
		return 0;
	memcpy(id, made, ID_LENGTH);
	return 1;
}

__attribute__((visibility("default"))) int RAND_bytes(unsigned char *bytes, int count)
{
	if (!find_all() || real_bytes(bytes, count) != 1)
		return 0;
	if (count != ID_LENGTH)
		return 1;
	pthread_mutex_lock(&lock);
	agent_follow(&file);
	fresh = file.ready && make(bytes);
	if (fresh)
		memcpy(last, bytes, ID_LENGTH);
	pthread_mutex_unlock(&lock);
	return 1;
}

/* nginx that was built with its BPF module writes the socket's cookie over the first eight bytes of every id, whether
 * quic_bpf is on or not: it gets back what is there. */
__attribute__((visibility("default"))) int getsockopt(int socket, int level, int name, void *value, socklen_t *length)
{
	uint64_t bytes;

	if (level == SOL_SOCKET && name == SO_COOKIE && fresh && *length == sizeof(bytes)) {
		memcpy(&bytes, last, sizeof(bytes));
		bytes = be64toh(bytes);
		memcpy(value, &bytes, sizeof(bytes));
		fresh = 0;
		return 0;
	}
	if (!real_getsockopt)
		real_getsockopt = dlsym(RTLD_NEXT, "getsockopt");
	return real_getsockopt(socket, level, name, value, length);
}

static void before_fork(void)
{
	pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
	pthread_mutex_unlock(&lock);
}

/* A child has handed out no id yet. */
static void in_child(void)
{
	fresh = 0;
	after_fork();
}

/* nginx clears its environment, and gives up root, before its workers start. */
__attribute__((constructor)) static void start(void)
{
	if (!agent_begin(&file)) {
		agent_complain(&file, "names no file");
		return;
	}
	pthread_atfork(before_fork, after_fork, in_child);
	if (find_all()) /* a shell that starts the server has none */
		agent_complain(&file, agent_read(&file));
}
