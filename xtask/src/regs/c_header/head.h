/*
 * The card contract: registers of the Coyote shell and of the verbs queue engine, entries of its
 * rings, codes. docs/card-contract.md says what they mean.
 *
 * Every number in memory is little-endian; on a big-endian machine convert it. Raw bytes (GIDs, MAC
 * addresses) stand in network order. Reserved bytes are written as zero and ignored when read.
 * A code that is not named here is a value like any other.
 */
#ifndef BALBOA_CARD_H
#define BALBOA_CARD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define BALBOA_ASSERT(condition, text) static_assert(condition, text)
#else
#define BALBOA_ASSERT(condition, text) _Static_assert(condition, text)
#endif

/* Numbers as they stand in memory: little-endian. */
typedef uint16_t balboa_le16;
typedef uint32_t balboa_le32;
typedef uint64_t balboa_le64;
