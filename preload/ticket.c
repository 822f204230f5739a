// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* ticket.c - LD_PRELOAD for servers that link OpenSSL (1.1.1 or 3) dynamically: session tickets and session ids name
 * the server, by the file that `ballast agent` keeps, so that load balancers find it when a client resumes its TLS
 * session.
 *
 * The environment names the file: BALLAST_TICKETS=PATH. It is followed. Every SSL_CTX gets callbacks for ticket keys
 * and session ids; those of the application are kept behind them and asked until the file has been read, not after.
 * Tickets are as OpenSSL's (RFC 5077 section 4): their key_name is a name of session_id.h; AES-256-CBC and HMAC-SHA256
 * have keys that are derived for that name. All servers of a service can read all tickets.
 *
 * Which of several keys that was is in the second half of the IV, which is random for those who do not have it:
 * HMAC-SHA256 of the rest. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sys/random.h>

#include "agent_file.h"
#include "session_id.h"

#define EXPORTED __attribute__((visibility("default")))

#define KEY_LENGTH 32
#define IV_LENGTH 16
#define HINT_LENGTH 8
#define EPOCHS 2 /* of names: tickets are made by the first, and read by both */
#define KEYS 16 /* of sessions, that the file lists: of more, the oldest are not read */

/* OpenSSL's */
#define CTRL_GET_TICKET_KEYS 58
#define CTRL_SET_TICKET_KEYS 59
#define CTRL_SET_TICKET_KEY_CALLBACK 72
#define TLS_1_3 0x0304
#define EX_INDEX_OF_CONTEXTS 1
#define OCTET_STRING 5
#define UTF8_STRING 4
#define UNMODIFIED ((size_t)-1)

struct parameter { /* OSSL_PARAM */
	const char *key;
	unsigned int type;
	void *data;
	size_t size, returned;
};

typedef int ticket_callback(void *ssl, unsigned char name[NAME_LENGTH], unsigned char *iv, void *cipher, void *mac,
			    int encrypt);
typedef int id_callback(void *ssl, unsigned char *id, unsigned int *length);

struct epoch {
	struct name_key names;
	unsigned char sessions[KEY_LENGTH]; /* of tickets that do not say which */
};

struct tickets {
	uint16_t server;
	int epochs;
	struct epoch epoch[EPOCHS];
	int keys;
	unsigned char key[KEYS][KEY_LENGTH];
};

static const char *take(const char *text);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct tickets current;
static struct agent_file file = {
	.library = "ballast-ticket",
	.variable = "BALLAST_TICKETS",
	.forbidden = "may not be read by this user",
	.as_before = "session tickets are made as before",
	.never = "session tickets name no server",
	.take = take,
};
static int overruled, overruled_said; /* the application has ticket keys or session ids of its own */

/* The OpenSSL whose contexts make tickets here: the first that makes one. Nothing of it is needed to build this. */
static struct {
	void *(*context_new)(const void *method);
	void *(*context_new_ex)(void *library, const char *query, const void *method);
	long (*control)(void *context, int command, long number, void *pointer);
	long (*callback_control)(void *context, int command, void (*callback)(void));
	int (*set_ticket_callback)(void *context, ticket_callback *callback); /* 3.0 and newer */
	int (*set_id_callback)(void *context, id_callback *callback);
	int (*set_data)(void *context, int index, void *data);
	void *(*data)(const void *context, int index);
	int (*data_index)(int class, long number, void *pointer, void *created, void *copied, void *freed);
	void *(*context_of)(const void *ssl);
	int (*version)(const void *ssl);
	const void *(*aes)(void), *(*sha256)(void);
	int (*encrypt)(void *cipher, const void *type, void *engine, const unsigned char *key, const unsigned char *iv);
	int (*decrypt)(void *cipher, const void *type, void *engine, const unsigned char *key, const unsigned char *iv);
	unsigned char *(*hmac)(const void *digest, const void *key, int key_length, const unsigned char *data,
			       size_t length, unsigned char *sum, unsigned int *sum_length);
	int (*hmac_init)(void *mac, const void *key, int length, const void *digest, void *engine);
	int (*mac_set)(void *mac, const struct parameter *parameters); /* 3.0 and newer */
} openssl;
static int openssl_found; /* -1: it has not all that is needed */
static int evp_index, hmac_index, id_index; /* of the application's callbacks in a context's data */

static const struct {
	const char *name;
	void *function; /* its address goes here */
	int optional;
} functions[] = {
	{ "SSL_CTX_new", &openssl.context_new, 0 },
	{ "SSL_CTX_new_ex", &openssl.context_new_ex, 1 },
	{ "SSL_CTX_ctrl", &openssl.control, 0 },
	{ "SSL_CTX_callback_ctrl", &openssl.callback_control, 0 },
	{ "SSL_CTX_set_tlsext_ticket_key_evp_cb", &openssl.set_ticket_callback, 1 },
	{ "SSL_CTX_set_generate_session_id", &openssl.set_id_callback, 0 },
	{ "SSL_CTX_set_ex_data", &openssl.set_data, 0 },
	{ "SSL_CTX_get_ex_data", &openssl.data, 0 },
	{ "CRYPTO_get_ex_new_index", &openssl.data_index, 0 },
	{ "SSL_get_SSL_CTX", &openssl.context_of, 0 },
	{ "SSL_version", &openssl.version, 0 },
	{ "EVP_aes_256_cbc", &openssl.aes, 0 },
	{ "EVP_sha256", &openssl.sha256, 0 },
	{ "EVP_EncryptInit_ex", &openssl.encrypt, 0 },
	{ "EVP_DecryptInit_ex", &openssl.decrypt, 0 },
	{ "HMAC", &openssl.hmac, 0 },
	{ "HMAC_Init_ex", &openssl.hmac_init, 1 },
	{ "EVP_MAC_CTX_set_params", &openssl.mac_set, 1 },
};

/* The library that has an address. 0: the program itself, or none. */
static void *library_of(const void *address)
{
	Dl_info found;

	return dladdr(address, &found) && found.dli_fname ? dlopen(found.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : 0;
}

/* The function of OpenSSL's that this thread is in: from there it may jump to another one of ours, as if we had called
 * that. */
static __thread const void *inside;

/* The function behind ours that a caller means. It may be one of a library that a module has brought along, and nobody
 * else sees. */
static void *behind(const char *name, const void *caller)
{
	void *found = dlsym(RTLD_NEXT, name), *library;

	if (found)
		return found;
	library = library_of(inside ? inside : caller);
	if (!library)
		return 0;
	found = dlsym(library, name);
	dlclose(library);
	return found;
}

/* Finds all functions of the OpenSSL that has one of them, which stays loaded. */
static int find_all(const void *one)
{
	void *library = library_of(one), *found;

	for (size_t i = 0; i < sizeof(functions) / sizeof(*functions); i++) {
		found = library ? dlsym(library, functions[i].name) : 0;
		if (!found && !functions[i].optional)
			return 0;
		memcpy(functions[i].function, &found, sizeof(found));
	}
	if (openssl.set_ticket_callback ? !openssl.mac_set : !openssl.hmac_init)
		return 0;
	evp_index = openssl.data_index(EX_INDEX_OF_CONTEXTS, 0, 0, 0, 0, 0);
	hmac_index = openssl.data_index(EX_INDEX_OF_CONTEXTS, 0, 0, 0, 0, 0);
	id_index = openssl.data_index(EX_INDEX_OF_CONTEXTS, 0, 0, 0, 0, 0);
	return evp_index >= 0 && hmac_index >= 0 && id_index >= 0;
}

/* How many bytes a key has; negative: it is none. */
static int key_of(const char *text, const char *name, unsigned char key[KEY_LENGTH])
{
	char hex[TEXT_MAX];
	int length = value_of(text, name, hex);

	length = length == -1 ? 0 : length < 0 ? length : bytes_of(hex, key, KEY_LENGTH);
	explicit_bzero(hex, sizeof(hex));
	return length;
}

/* 1: the keys of an epoch; 0: there are none; -1: they are wrong. */
static int keys_of(const char *text, const char *id_key, const char *ticket_key, struct epoch *epoch)
{
	unsigned char names[NAME_KEY_LENGTH] = {};
	int first = key_of(text, id_key, names), second = key_of(text, ticket_key, epoch->sessions);

	epoch->names = name_key_of(names);
	explicit_bzero(names, sizeof(names));
	return first == 0 && second == 0 ? 0 : first == NAME_KEY_LENGTH && second == KEY_LENGTH ? 1 : -1;
}

/* How many keys are listed; 0: none, and there is no list; -1: it is wrong. */
static int listed_keys(const char *text, unsigned char key[KEYS][KEY_LENGTH])
{
	const char *at = after_key(text, "ticket_keys");
	char hex[2 * KEY_LENGTH + 1];
	int keys = 0;

	if (!at)
		return 0;
	for (char next = '['; *at == next && next != ']'; next = *at == ']' ? ']' : ',') {
		at++;
		at += strspn(at, " \t\r\n");
		if (*at != '"' || strcspn(at + 1, "\"") != 2 * KEY_LENGTH || at[1 + 2 * KEY_LENGTH] != '"')
			return -1;
		memcpy(hex, at + 1, 2 * KEY_LENGTH);
		hex[2 * KEY_LENGTH] = 0;
		if (keys < KEYS && bytes_of(hex, key[keys++], KEY_LENGTH) != KEY_LENGTH)
			keys = -1;
		explicit_bzero(hex, sizeof(hex));
		if (keys < 0)
			return -1;
		at += 2 * KEY_LENGTH + 2;
		at += strspn(at, " \t\r\n");
	}
	return *at == ']' && keys > 0 ? keys : -1;
}

static const char *take(const char *text)
{
	struct tickets tickets = {};
	char server[TEXT_MAX];
	const char *wrong = 0;
	int number, now, before;

	if (value_of(text, "server_id", server) < 0)
		return "is no file of ballast agent";
	number = number_of(server, UINT16_MAX);
	now = keys_of(text, "id_key", "ticket_key", &tickets.epoch[0]);
	before = keys_of(text, "id_key_before", "ticket_key_before", &tickets.epoch[1]);
	tickets.server = number;
	tickets.epochs = 1 + before;
	tickets.keys = listed_keys(text, tickets.key);
	if (now == 0)
		wrong = "is no file of ballast agent";
	else if (number < 1 || now < 0 || before < 0 || tickets.keys < 0)
		wrong = "has values that do not fit together";
	else
		current = tickets;
	explicit_bzero(&tickets, sizeof(tickets));
	return wrong;
}

/* Under the lock. */
static void say_overruled(void)
{
	if (overruled && file.ready && !overruled_said) {
		overruled_said = 1;
		agent_say(&file, "the application's own ticket keys or session ids are not used", "");
	}
}

static void overrule(void)
{
	pthread_mutex_lock(&lock);
	overruled = 1;
	say_overruled();
	pthread_mutex_unlock(&lock);
}

/* What the file says now. 0: it has never been read. */
static int look(struct tickets *tickets)
{
	int ready;

	pthread_mutex_lock(&lock);
	agent_follow(&file);
	say_overruled();
	ready = file.ready;
	if (ready)
		*tickets = current;
	pthread_mutex_unlock(&lock);
	return ready;
}

static int draw(unsigned char *bytes, size_t count)
{
	return getrandom(bytes, count, 0) == (ssize_t)count;
}

/* Ticket callbacks have one of two forms: with EVP_MAC_CTX, or, as in 1.1.1, with HMAC_CTX. */
typedef int mac_key(void *mac, const unsigned char key[KEY_LENGTH]);

static int evp_key(void *mac, const unsigned char key[KEY_LENGTH])
{
	const struct parameter parameters[] = {
		{ "key", OCTET_STRING, (void *)key, KEY_LENGTH, UNMODIFIED },
		{ "digest", UTF8_STRING, "SHA256", sizeof("SHA256") - 1, UNMODIFIED },
		{},
	};

	return openssl.mac_set(mac, parameters) > 0;
}

static int hmac_key(void *mac, const unsigned char key[KEY_LENGTH])
{
	return openssl.hmac_init(mac, key, KEY_LENGTH, openssl.sha256(), 0) > 0;
}

static int set_keys(void *cipher, void *mac, mac_key *set_mac, const unsigned char aes[KEY_LENGTH],
		    const unsigned char sha[KEY_LENGTH], const unsigned char *iv, int encrypt)
{
	return set_mac(mac, sha) &&
	       (encrypt ? openssl.encrypt : openssl.decrypt)(cipher, openssl.aes(), 0, aes, iv) > 0;
}

/* A key of one name: HMAC-SHA256 under a key of sessions of the name and what it is for. */
static int derive(const unsigned char sessions[KEY_LENGTH], const unsigned char name[NAME_LENGTH], char purpose,
		  unsigned char key[KEY_LENGTH])
{
	unsigned char message[NAME_LENGTH + 1];
	unsigned int length = 0;

	memcpy(message, name, NAME_LENGTH);
	message[NAME_LENGTH] = purpose;
	return openssl.hmac(openssl.sha256(), sessions, KEY_LENGTH, message, sizeof(message), key, &length) &&
	       length == KEY_LENGTH;
}

/* What the second half of an IV is, by its first one and a key of sessions. */
static int hint_of(const unsigned char sessions[KEY_LENGTH], const unsigned char name[NAME_LENGTH],
		   const unsigned char *iv, unsigned char hint[KEY_LENGTH])
{
	unsigned char message[NAME_LENGTH + IV_LENGTH - HINT_LENGTH];
	unsigned int length = 0;

	memcpy(message, name, NAME_LENGTH);
	memcpy(message + NAME_LENGTH, iv, IV_LENGTH - HINT_LENGTH);
	return openssl.hmac(openssl.sha256(), sessions, KEY_LENGTH, message, sizeof(message), hint, &length) &&
	       length == KEY_LENGTH;
}

/* The key of sessions that a ticket was made by. One without a hint, as of an older library, can only be by that of its
 * name's epoch. */
static const unsigned char *key_for(const struct tickets *tickets, int epoch, const unsigned char name[NAME_LENGTH],
				    const unsigned char *iv)
{
	unsigned char hint[KEY_LENGTH];

	for (int i = 0; i < tickets->keys; i++)
		if (hint_of(tickets->key[i], name, iv, hint) &&
		    !memcmp(hint, iv + IV_LENGTH - HINT_LENGTH, HINT_LENGTH))
			return tickets->key[i];
	return tickets->epoch[epoch].sessions;
}

/* What becomes of a ticket as long as the file has not been read: what would without this library. */
static int by_the_application(void *ssl, unsigned char name[NAME_LENGTH], unsigned char *iv, void *cipher, void *mac,
			      int encrypt, mac_key *set_mac)
{
	void *context = openssl.context_of(ssl);
	ticket_callback *own = openssl.data(context, set_mac == evp_key ? evp_index : hmac_index);
	unsigned char keys[NAME_LENGTH + 2 * KEY_LENGTH]; /* key_name, of HMAC, of AES */
	int result = -1;

	if (own)
		return own(ssl, name, iv, cipher, mac, encrypt);
	if (openssl.control(context, CTRL_GET_TICKET_KEYS, sizeof(keys), keys) != 1)
		return 0;
	if (!encrypt && memcmp(name, keys, NAME_LENGTH))
		result = 0;
	else if ((!encrypt || draw(iv, IV_LENGTH)) &&
		 set_keys(cipher, mac, set_mac, keys + NAME_LENGTH + KEY_LENGTH, keys + NAME_LENGTH, iv, encrypt))
		result = !encrypt && openssl.version(ssl) == TLS_1_3 ? 2 : 1;
	if (encrypt)
		memcpy(name, keys, NAME_LENGTH);
	explicit_bzero(keys, sizeof(keys));
	return result;
}

/* Makes or reads a ticket. 1: done; 2: done, and the client needs a new one; 0: it is not ours; -1: the connection
 * ends. */
static int ticket(void *ssl, unsigned char name[NAME_LENGTH], unsigned char *iv, void *cipher, void *mac, int encrypt,
		  mac_key *set_mac)
{
	struct tickets tickets;
	unsigned char aes[KEY_LENGTH], sha[KEY_LENGTH], hint[KEY_LENGTH];
	const unsigned char *sessions = tickets.epoch[0].sessions;
	int epoch = 0, result = -1;
	uint16_t server = 0;

	if (!look(&tickets))
		return by_the_application(ssl, name, iv, cipher, mac, encrypt, set_mac);
	if (encrypt) {
		if (!draw(name, 8) || !draw(iv, IV_LENGTH - HINT_LENGTH))
			goto end;
		server = tickets.server;
		name_seal(&tickets.epoch[0].names, name, server);
		if (!hint_of(sessions, name, iv, hint))
			goto end;
		memcpy(iv + IV_LENGTH - HINT_LENGTH, hint, HINT_LENGTH);
	} else {
		while (epoch < tickets.epochs && !(server = name_open(&tickets.epoch[epoch].names, name)))
			epoch++;
		if (!server) {
			result = 0;
			goto end;
		}
		sessions = key_for(&tickets, epoch, name, iv);
	}
	if (derive(sessions, name, 'e', aes) && derive(sessions, name, 'm', sha) &&
	    set_keys(cipher, mac, set_mac, aes, sha, iv, encrypt))
		result = !encrypt && (openssl.version(ssl) == TLS_1_3 || epoch || server != tickets.server ||
				      memcmp(sessions, tickets.epoch[0].sessions, KEY_LENGTH))
				 ? 2
				 : 1;
	explicit_bzero(aes, sizeof(aes));
	explicit_bzero(sha, sizeof(sha));
end:
	explicit_bzero(&tickets, sizeof(tickets));
	return result;
}

static int evp_ticket(void *ssl, unsigned char name[NAME_LENGTH], unsigned char *iv, void *cipher, void *mac,
		      int encrypt)
{
	return ticket(ssl, name, iv, cipher, mac, encrypt, evp_key);
}

static int hmac_ticket(void *ssl, unsigned char name[NAME_LENGTH], unsigned char *iv, void *cipher, void *mac,
		       int encrypt)
{
	return ticket(ssl, name, iv, cipher, mac, encrypt, hmac_key);
}

/* Makes the id of a session that is kept at the server. */
static int session_id(void *ssl, unsigned char *id, unsigned int *length)
{
	struct tickets tickets;
	id_callback *own;

	if (!look(&tickets)) {
		own = openssl.data(openssl.context_of(ssl), id_index);
		return own ? own(ssl, id, length) : draw(id, *length);
	}
	if (!draw(id, *length)) {
		explicit_bzero(&tickets, sizeof(tickets));
		return 0;
	}
	if (*length >= NAME_LENGTH)
		name_seal(&tickets.epoch[0].names, id, tickets.server);
	explicit_bzero(&tickets, sizeof(tickets));
	return 1;
}

/* A context that OpenSSL has made by one of its functions. */
static void *prepare(void *context, const void *made_by)
{
	static int other_said;
	int ours;

	if (!context)
		return context;
	pthread_mutex_lock(&lock);
	if (!file.path[0]) {
		agent_complain(&file, "names no file");
		pthread_mutex_unlock(&lock);
		return context;
	}
	if (!openssl_found) {
		openssl_found = find_all(made_by) ? 1 : -1;
		if (openssl_found < 0)
			memset(&openssl, 0, sizeof(openssl));
	}
	ours = made_by == (void *)openssl.context_new || made_by == (void *)openssl.context_new_ex;
	if (ours) {
		agent_follow(&file);
	} else if (!other_said) {
		other_said = 1;
		agent_say(&file,
			  openssl_found < 0 ? "the program's OpenSSL is not known here"
					    : "the program has a second OpenSSL",
			  "its session tickets name no server");
	}
	pthread_mutex_unlock(&lock);
	if (!ours)
		return context;
	if (openssl.set_ticket_callback)
		openssl.set_ticket_callback(context, evp_ticket);
	else
		openssl.callback_control(context, CTRL_SET_TICKET_KEY_CALLBACK, (void (*)(void))hmac_ticket);
	openssl.set_id_callback(context, session_id);
	return context;
}

EXPORTED void *SSL_CTX_new(const void *method)
{
	void *(*real)(const void *) = behind("SSL_CTX_new", __builtin_return_address(0)), *context = 0;

	if (real) {
		inside = real;
		context = real(method);
		inside = 0;
	}
	return prepare(context, real);
}

EXPORTED void *SSL_CTX_new_ex(void *library, const char *query, const void *method)
{
	void *(*real)(void *, const char *, const void *) = behind("SSL_CTX_new_ex", __builtin_return_address(0));

	return real ? prepare(real(library, query, method), real) : 0;
}

/* The application's ticket keys, in the three ways that there are, and its session ids. */

EXPORTED int SSL_CTX_set_tlsext_ticket_key_evp_cb(void *context, ticket_callback *callback)
{
	int (*real)(void *, ticket_callback *) =
		behind("SSL_CTX_set_tlsext_ticket_key_evp_cb", __builtin_return_address(0));

	if (!real)
		return 0;
	if (real != openssl.set_ticket_callback)
		return real(context, callback);
	overrule();
	return openssl.set_data(context, evp_index, (void *)callback) && real(context, evp_ticket);
}

EXPORTED long SSL_CTX_callback_ctrl(void *context, int command, void (*callback)(void))
{
	long (*real)(void *, int, void (*)(void)) = behind("SSL_CTX_callback_ctrl", __builtin_return_address(0));

	if (!real)
		return 0;
	if (real != openssl.callback_control || command != CTRL_SET_TICKET_KEY_CALLBACK || !openssl.hmac_init)
		return real(context, command, callback);
	overrule();
	if (!openssl.set_data(context, hmac_index, (void *)callback))
		return 0;
	if (openssl.set_ticket_callback) /* which OpenSSL would ask first */
		openssl.set_ticket_callback(context, 0);
	return real(context, command, (void (*)(void))hmac_ticket);
}

EXPORTED long SSL_CTX_ctrl(void *context, int command, long number, void *pointer)
{
	long (*real)(void *, int, long, void *) = behind("SSL_CTX_ctrl", __builtin_return_address(0));

	if (!real)
		return 0;
	if (real == openssl.control && command == CTRL_SET_TICKET_KEYS && pointer)
		overrule();
	return real(context, command, number, pointer); /* these keys are OpenSSL's for contexts without callback */
}

EXPORTED int SSL_CTX_set_generate_session_id(void *context, id_callback *callback)
{
	int (*real)(void *, id_callback *) = behind("SSL_CTX_set_generate_session_id", __builtin_return_address(0));

	if (!real)
		return 0;
	if (real != openssl.set_id_callback)
		return real(context, callback);
	overrule();
	return openssl.set_data(context, id_index, (void *)callback);
}

static void before_fork(void)
{
	pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
	pthread_mutex_unlock(&lock);
}

/* A server may clear its environment, give up root, or go into a chroot, before it has a context. Nothing is said here:
 * many processes only start one. */
__attribute__((constructor)) static void start(void)
{
	if (agent_begin(&file)) {
		agent_read(&file);
		pthread_atfork(before_fork, after_fork, after_fork);
	}
}
