/*
 * The unique id: 128 bytes that all ranks of a job get. They contain addresses, a nonce that
 * distinguishes ids of one port, a secret and a checksum. docs/wire-protocol.md has the layout.
 * Whoever has the bytes may join, so they are never logged.
 */
#include "membership/bootstrap.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    AT_VERSION = 4,
    AT_FLAGS = 5,
    AT_COUNT = 6,
    AT_NONCE = 8,
    AT_SECRET = 16,
    AT_ADDRESSES = 48,
    AT_CHECKSUM = 120
};
enum { FLAG_EXPLICIT = 1, FLAG_GROW = 2, SECRET_CHARS_MIN = 16, SECRET_CHARS_MAX = 4096 };
static const unsigned char id_magic[4] = {'F', 'T', 'i', 'd'};

/* SipHash-2-4 with a fixed public key: it detects damage and proves nothing. */
static void checksum(unsigned char out[8], const unsigned char id[FT_UNIQUE_ID_BYTES])
{
    static const unsigned char key[crypto_shorthash_KEYBYTES] = "FTCCL unique id";
    _Static_assert(crypto_shorthash_BYTES == 8, "the checksum fills the rest of the id");
    crypto_shorthash(out, id, AT_CHECKSUM, key);
}

/* Family (4 or 6), address, scope (6 only), port. Returns the bytes used, 0 if they do not fit. */
static size_t address_encode(unsigned char *out, size_t room_bytes,
                             const struct ft_net_address *address)
{
    size_t ip = address->family == AF_INET6 ? 16 : 4, used = 1 + ip + (ip == 16 ? 4 : 0) + 2;
    if (room_bytes < used)
        return 0;
    out[0] = ip == 16 ? 6 : 4;
    memcpy(out + 1, address->ip, ip);
    if (ip == 16)
        ft_put32(out + 17, address->scope);
    out[used - 2] = (unsigned char)address->port;
    out[used - 1] = (unsigned char)(address->port >> 8);
    return used;
}

static size_t address_decode(struct ft_net_address *address, const unsigned char *in,
                             size_t len_bytes)
{
    size_t ip = len_bytes > 0 && in[0] == 6 ? 16 : 4, used = 1 + ip + (ip == 16 ? 4 : 0) + 2;
    if (len_bytes < used || (in[0] != 4 && in[0] != 6))
        return 0;
    memset(address, 0, sizeof *address);
    address->family = ip == 16 ? AF_INET6 : AF_INET;
    address->up = true;
    memcpy(address->ip, in + 1, ip);
    if (ip == 16)
        address->scope = ft_get32(in + 17);
    address->port = (uint16_t)(in[used - 2] | in[used - 1] << 8);
    return address->port ? used : 0;
}

int ft_id_encode(unsigned char out[FT_UNIQUE_ID_BYTES], const struct ft_id *id)
{
    memset(out, 0, FT_UNIQUE_ID_BYTES);
    memcpy(out, id_magic, 4);
    out[AT_VERSION] = FT_WIRE_VERSION;
    out[AT_FLAGS] = (unsigned char)((id->explicit_address ? FLAG_EXPLICIT : 0) |
                                    (id->grow ? FLAG_GROW : 0));
    ft_put64(out + AT_NONCE, id->nonce);
    memcpy(out + AT_SECRET, id->secret, FT_SECRET_BYTES);
    size_t at = AT_ADDRESSES;
    int n = 0;
    for (int i = 0; i < id->naddresses && n < FT_NET_ADDRESSES; i++) {
        size_t used = address_encode(out + at, AT_CHECKSUM - at, &id->address[i]);
        at += used;
        n += used > 0;
    }
    out[AT_COUNT] = (unsigned char)n;
    checksum(out + AT_CHECKSUM, out);
    return n;
}

int ft_id_decode(struct ft_id *id, const unsigned char in[FT_UNIQUE_ID_BYTES])
{
    unsigned char sum[8];
    if (memcmp(in, id_magic, 4) != 0)
        return ft_fail(FT_INVAL, "the unique id is not one of FTCCL's");
    if (in[AT_VERSION] != FT_WIRE_VERSION)
        return ft_fail(FT_VERSION, "the unique id was made by wire version %d, this is %d",
                       in[AT_VERSION], FT_WIRE_VERSION);
    checksum(sum, in);
    if (memcmp(sum, in + AT_CHECKSUM, sizeof sum) != 0)
        return ft_fail(FT_INVAL, "the unique id is damaged: its checksum does not match its bytes");
    int n = in[AT_COUNT], flags = in[AT_FLAGS];
    /* one flag at most */
    if (n < 1 || n > FT_NET_ADDRESSES || flags > FLAG_GROW || in[AT_COUNT + 1] != 0)
        return ft_fail(FT_INVAL, "the unique id is malformed");
    id->explicit_address = flags == FLAG_EXPLICIT;
    id->grow = flags == FLAG_GROW;
    id->survivors = 0;
    id->kept = false;
    id->owner = NULL;
    id->naddresses = n;
    id->nonce = ft_get64(in + AT_NONCE);
    memcpy(id->secret, in + AT_SECRET, FT_SECRET_BYTES);
    for (size_t at = AT_ADDRESSES, i = 0; i < (size_t)n; i++) {
        size_t used = address_decode(&id->address[i], in + at, AT_CHECKSUM - at);
        if (!used)
            return ft_fail(FT_INVAL, "the unique id is malformed: address %zu of %d", i, n);
        at += used;
    }
    return FT_OK;
}

/* A secret file must not be readable or writable by other users. Returns the length without
 * trailing white space, or a status. */
static int read_secret_file(const char *name, const char *path, char *text, size_t capacity_bytes)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return ft_fail(FT_USAGE, "%s %s: %s", name, path, strerror(errno));
    ssize_t n = -1;
    int status = FT_OK;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        status = ft_fail(FT_USAGE, "%s %s is not a regular file", name, path);
    else if (st.st_mode & 077)
        status = ft_fail(FT_USAGE, "%s %s has mode %04o; others can use it, it must be 0600", name,
                         path, (unsigned)st.st_mode & 07777);
    else if ((n = read(fd, text, capacity_bytes)) < 0 || (size_t)n == capacity_bytes)
        status = ft_fail(FT_USAGE, "%s %s cannot be read or is longer than %zu bytes", name, path,
                         capacity_bytes - 1);
    close(fd);
    while (!status && n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r' || text[n - 1] == ' '))
        n--;
    return status ? status : (int)n;
}

static int secret_of_text(const char *text, int n, unsigned char secret[FT_SECRET_BYTES])
{
    if (n < SECRET_CHARS_MIN)
        return ft_fail(FT_USAGE, "the secret has %d characters, it needs at least %d", n,
                       SECRET_CHARS_MIN);
    crypto_generichash(secret, FT_SECRET_BYTES, (const unsigned char *)text, (size_t)n, NULL, 0);
    return FT_OK;
}

int ft_secret_of_file(const char *name, const char *path, unsigned char secret[FT_SECRET_BYTES])
{
    char text[SECRET_CHARS_MAX + 1];
    int n = read_secret_file(name, path, text, sizeof text);
    int status = n < 0 ? n : secret_of_text(text, n, secret);
    sodium_memzero(text, sizeof text);
    return status;
}

int ft_secret_of_job(const char *what, unsigned char secret[FT_SECRET_BYTES])
{
    char text[SECRET_CHARS_MAX + 1];
    const char *plain = ft_param_str(FT_PARAM_SECRET), *path = ft_param_str(FT_PARAM_SECRET_FILE);
    int n;
    if (*plain) {
        n = (int)ft_min(strlen(plain), sizeof text);
        memcpy(text, plain, (size_t)n);
    } else if (*path) {
        return ft_secret_of_file("FTCCL_SECRET_FILE", path, secret);
    } else {
        return ft_fail(FT_USAGE,
                       "%s but neither FTCCL_SECRET nor FTCCL_SECRET_FILE: anybody could join",
                       what);
    }
    int status = secret_of_text(text, n, secret);
    sodium_memzero(text, sizeof text);
    return status;
}

/* The nonce is the port, so that a wrong secret gives an authentication error and not an unknown
 * id. */
int ft_id_from_environment(struct ft_id *id)
{
    memset(id, 0, sizeof *id);
    id->explicit_address = true;
    int status = ft_secret_of_job("FTCCL_COMM_ID is set", id->secret);
    if (status)
        return status;
    int n = ft_net_resolve(ft_param_str(FT_PARAM_COMM_ID), id->address, FT_NET_ADDRESSES);
    if (n < 0) {
        char why[256];
        snprintf(why, sizeof why, "%s", ft_fail_text());
        return n == FT_INVAL ? ft_fail(FT_USAGE, "FTCCL_COMM_ID: %s", why) : n;
    }
    id->naddresses = n;
    id->nonce = id->address[0].port;
    return FT_OK;
}

int ft_unique_id_check(const unsigned char bytes[FT_UNIQUE_ID_BYTES])
{
    struct ft_id id;
    return ft_id_decode(&id, bytes);
}

static int serve_new(struct ft_id *id)
{
    ft_random_secret(id->secret);
    ft_env_real()->random(ft_env_real(), &id->nonce, sizeof id->nonce);
    return ft_service_add(id);
}

int ft_unique_id_keep(unsigned char bytes[FT_UNIQUE_ID_BYTES])
{
    struct ft_id id = {.kept = true};
    if (ft_forked())
        return ft_fail(FT_FORKED, "a unique id cannot be made in a child of fork");
    int status = serve_new(&id);
    if (status == FT_OK)
        ft_id_encode(bytes, &id);
    return status;
}

int ft_unique_id_release(const unsigned char bytes[FT_UNIQUE_ID_BYTES])
{
    struct ft_id id;
    int status = ft_forked() ? ft_fail(FT_FORKED, "the id belongs to the parent of the fork")
                             : ft_id_decode(&id, bytes);
    if (status == FT_OK)
        ft_service_withdraw(id.nonce, "the process that made the id released it");
    return status;
}

int ft_unique_id_make(unsigned char bytes[FT_UNIQUE_ID_BYTES])
{
    struct ft_id id;
    if (ft_forked())
        return ft_fail(FT_FORKED, "a unique id cannot be made in a child of fork");
    if (*ft_param_str(FT_PARAM_COMM_ID)) {
        int status = ft_id_from_environment(&id);
        if (status)
            return status;
    } else {
        memset(&id, 0, sizeof id);
        int status = serve_new(&id);
        if (status)
            return status;
    }
    ft_id_encode(bytes, &id);
    return FT_OK;
}

int ft_unique_id_key(const unsigned char bytes[FT_UNIQUE_ID_BYTES],
                     unsigned char key[FT_SECRET_BYTES])
{
    struct ft_id id;
    int status = ft_id_decode(&id, bytes);
    if (status != FT_OK)
        return status;
    if (id.grow)
        memcpy(key, id.secret, FT_SECRET_BYTES);
    else
        ft_auth_derive(key, id.secret, "job", id.nonce);
    sodium_memzero(&id, sizeof id);
    return FT_OK;
}

uint64_t ft_unique_id_nonce(const unsigned char bytes[FT_UNIQUE_ID_BYTES])
{
    struct ft_id id;
    uint64_t nonce = ft_id_decode(&id, bytes) == FT_OK ? id.nonce : 0;
    sodium_memzero(&id, sizeof id);
    return nonce;
}
