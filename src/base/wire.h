/*
 * Numbers on the wire: little-endian, at a pointer that moves on. Who reads has checked that the
 * bytes are there.
 */
#ifndef FT_WIRE_H
#define FT_WIRE_H

#include <stdint.h>

/* Messages to and from daemons, after the handshake of auth.h: length of what follows the header
 * (4 bytes), service (2), type (2). The handshake's detail is the version. */
#define FT_DAEMON_VERSION 2u
#define FT_DAEMON_HEADER_BYTES 8

static inline void put_bytes(unsigned char **at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        *(*at)++ = (unsigned char)(value >> (8 * i));
}
static inline uint64_t get_bytes(const unsigned char **at, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value |= (uint64_t) * (*at)++ << (8 * i);
    return value;
}
static inline void put16(unsigned char **at, uint16_t value)
{
    put_bytes(at, value, 2);
}
static inline void put24(unsigned char **at, uint32_t value)
{
    put_bytes(at, value, 3);
}
static inline void put32(unsigned char **at, uint32_t value)
{
    put_bytes(at, value, 4);
}
static inline void put64(unsigned char **at, uint64_t value)
{
    put_bytes(at, value, 8);
}
static inline uint16_t get16(const unsigned char **at)
{
    return (uint16_t)get_bytes(at, 2);
}
static inline uint32_t get32(const unsigned char **at)
{
    return (uint32_t)get_bytes(at, 4);
}
static inline uint64_t get64(const unsigned char **at)
{
    return get_bytes(at, 8);
}
/* A number from -1 on, in 24 bits. */
static inline int get24(const unsigned char **at)
{
    uint32_t value = (uint32_t)get_bytes(at, 3);
    return value == 0xffffff ? -1 : (int)value;
}

#endif
