// The trivial master in a vFPGA, with the ports that the simulation drives.
module copy_top
  import balboa_host_pkg::*;
(
    `include "vfpga_ports.svh"
    output logic [31:0] notify
);
  logic                   write_valid;
  logic                   write_ready;
  register_write_t        write;
  logic            [15:0] read_address;
  logic            [63:0] read_data;
  host_request_t          sq_rd;
  host_request_t          sq_wr;
  host_beat_t             recv;
  host_beat_t             send;

  assign {sq_rd_stream, sq_rd_length, sq_rd_address} = sq_rd;
  assign {sq_wr_stream, sq_wr_length, sq_wr_address} = sq_wr;
  assign recv = '{last: recv_last, keep: recv_keep, data: recv_data};
  assign {send_last, send_keep, send_data} = send;

  assign write_ready = 1'b1;
  balboa_axil axil (.*);
  balboa_copy copy (.*);

  logic unused;
  assign unused = &{1'b0, cq_rd_valid, cq_rd_stream, cq_wr_stream};
endmodule
