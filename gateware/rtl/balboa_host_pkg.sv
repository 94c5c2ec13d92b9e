// The records at the shell's ports to host memory, without what this engine does not use of them.
`ifndef BALBOA_HOST_PKG_SV
`define BALBOA_HOST_PKG_SV

package balboa_host_pkg;
  // A module need not use all of the package.
  /* verilator lint_off UNUSEDPARAM */
  // Bytes of a request at most: what the shell's MMU takes at a time.
  localparam int unsigned HOST_MAX_REQUEST = 4096;

  // sq_rd, sq_wr.
  typedef struct packed {
    // Of axis_host_recv or axis_host_send.
    logic [3:0]  stream;
    // Bytes, at least 1.
    logic [27:0] length;
    // Virtual.
    logic [47:0] address;
  } host_request_t;

  // axis_host_recv, axis_host_send: a request's data begins at byte 0, whatever its address.
  typedef struct packed {
    logic         last;
    logic [63:0]  keep;
    logic [511:0] data;
  } host_beat_t;

  // A write of registers.
  typedef struct packed {
    logic [7:0]  strobe;
    logic [63:0] data;
    logic [15:0] address;
  } register_write_t;

  // The bytes that count in a beat of so many; 64 and more are all.
  function automatic logic [63:0] keep_of(input logic [27:0] bytes);
    return bytes >= 28'd64 ? '1 : ~(64'hffff_ffff_ffff_ffff << bytes[5:0]);
  endfunction

  /* verilator lint_on UNUSEDPARAM */
endpackage

`endif
