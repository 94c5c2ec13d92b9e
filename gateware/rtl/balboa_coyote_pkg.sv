// Where fields stand in the records at the ports of a Coyote vFPGA: the number of a field's lowest bit, in the older of the
// two layouts that were published. The newer one lacks flags above most fields, which stand as many bits higher there.
`ifndef BALBOA_COYOTE_PKG_SV
`define BALBOA_COYOTE_PKG_SV

package balboa_coyote_pkg;
  // A module need not use all of the package.
  /* verilator lint_off UNUSEDPARAM */

  // sq_rd, sq_wr. Above these fields the older layout has the flags mode, rdma and remote.
  localparam int unsigned REQUEST_BITS = 128;
  localparam int unsigned REQUEST_FLAGS = 3;
  localparam int unsigned REQUEST_OPCODE = 123;
  localparam int unsigned REQUEST_KIND = 121;
  localparam int unsigned REQUEST_PID = 108;
  localparam int unsigned REQUEST_STREAM = 104;
  localparam int unsigned REQUEST_LAST = 103;
  localparam int unsigned REQUEST_ADDRESS = 55;
  localparam int unsigned REQUEST_LENGTH = 27;

  // cq_rd, cq_wr. Above the stream the older layout has the flags remote and host.
  localparam int unsigned ACK_BITS = 32;
  localparam int unsigned ACK_FLAGS = 2;
  localparam int unsigned ACK_OPCODE = 27;
  localparam int unsigned ACK_KIND = 25;
  localparam int unsigned ACK_STREAM = 19;
  localparam int unsigned ACK_PID = 13;

  // notify, the same in both.
  localparam int unsigned NOTIFY_BITS = 38;

  // Opcodes of accesses to host memory, in requests and completions.
  localparam logic [4:0] OPCODE_READ = 5'd1;
  localparam logic [4:0] OPCODE_WRITE = 5'd2;
  // The kind of a stream: host memory.
  localparam logic [1:0] KIND_HOST = 2'd1;

  /* verilator lint_on UNUSEDPARAM */
endpackage

`endif
