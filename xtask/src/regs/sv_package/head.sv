//
// The card contract: registers of the Coyote shell and of the verbs queue engine, entries of its
// rings, codes. docs/card-contract.md says what they mean.
//
// Bit order: byte n of an entry in memory stands in bits [8n+7:8n] of its packed structure, so a
// 512-bit AXI beat that begins at the entry is the structure as it is. Numbers are little-endian.
// Raw bytes (GIDs, MAC addresses) stand in network order: their first byte is the lowest.
// Members named reserved_* are driven zero and ignored when read.
// Offsets of registers count from the base of their block; entries of several blocks of 64 bytes
// have their first block in the lowest 512 bits.
`ifndef BALBOA_CARD_PKG_SV
`define BALBOA_CARD_PKG_SV

package balboa_card_pkg;
  /* verilator lint_off UNUSEDPARAM */
  /* verilator lint_off UNUSEDSIGNAL */
  /* verilator lint_off SYMRSVDWORD */

  // The unit of every ring: 64 bytes, one beat of a 512-bit bus.
  typedef logic [511:0] block_t;
