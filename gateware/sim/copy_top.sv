// The trivial master in a vFPGA, with the ports that the simulation drives.
module copy_top
  import balboa_host_pkg::*;
(
    input  logic         clk,
    input  logic         rst_n,
    input  logic         awvalid,
    output logic         awready,
    input  logic [ 15:0] awaddr,
    input  logic         wvalid,
    output logic         wready,
    input  logic [ 63:0] wdata,
    input  logic [  7:0] wstrb,
    output logic         bvalid,
    input  logic         bready,
    input  logic         arvalid,
    output logic         arready,
    input  logic [ 15:0] araddr,
    output logic         rvalid,
    input  logic         rready,
    output logic [ 63:0] rdata,
    output logic         sq_rd_valid,
    input  logic         sq_rd_ready,
    output logic [ 47:0] sq_rd_address,
    output logic [ 27:0] sq_rd_length,
    output logic [  3:0] sq_rd_stream,
    output logic         sq_wr_valid,
    input  logic         sq_wr_ready,
    output logic [ 47:0] sq_wr_address,
    output logic [ 27:0] sq_wr_length,
    output logic [  3:0] sq_wr_stream,
    input  logic         cq_rd_valid,
    input  logic [  3:0] cq_rd_stream,
    input  logic         cq_wr_valid,
    input  logic [  3:0] cq_wr_stream,
    input  logic         recv_valid,
    output logic         recv_ready,
    input  logic [511:0] recv_data,
    input  logic [ 63:0] recv_keep,
    input  logic         recv_last,
    output logic         send_valid,
    input  logic         send_ready,
    output logic [511:0] send_data,
    output logic [ 63:0] send_keep,
    output logic         send_last,
    output logic         notify_valid,
    input  logic         notify_ready,
    output logic [ 31:0] notify
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
