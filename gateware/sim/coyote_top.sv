// The adaptor to the shell's records, in both layouts, with the ports that the simulation drives. The records of both its
// sides are bits of the two streams' data: gateware/cosim/src/coyote.rs has their places.
module coyote_top
  import balboa_coyote_pkg::*;
  import balboa_host_pkg::*;
(
    `include "vfpga_ports.svh"
    output logic [31:0] notify
);
  logic          [             5:0] pid;
  host_request_t                    sq_rd;
  host_request_t                    sq_wr;
  logic          [    ACK_BITS-1:0] shell_cq_rd;
  logic          [    ACK_BITS-1:0] shell_cq_wr;
  logic          [             1:0] own_rd;
  logic          [             1:0] own_wr;
  logic          [             3:0] stream_rd   [2];
  logic          [             3:0] stream_wr   [2];
  logic          [REQUEST_BITS-1:0] shell_sq_rd [2];
  logic          [REQUEST_BITS-1:0] shell_sq_wr [2];
  logic          [ NOTIFY_BITS-1:0] shell_notify[2];

  assign sq_rd = recv_data[79:0];
  assign sq_wr = recv_data[159:80];
  assign {shell_cq_wr, shell_cq_rd} = recv_data[223:160];
  assign pid = recv_data[261:256];

  for (genvar newer = 0; newer < 2; newer++) begin : gen_layout
    balboa_coyote #(
        .Newer(newer != 0)
    ) coyote (
        .pid(pid),
        .sq_rd(sq_rd),
        .sq_wr(sq_wr),
        .notify(recv_data[255:224]),
        .cq_rd_valid(own_rd[newer]),
        .cq_rd_stream(stream_rd[newer]),
        .cq_wr_valid(own_wr[newer]),
        .cq_wr_stream(stream_wr[newer]),
        .shell_sq_rd(shell_sq_rd[newer]),
        .shell_sq_wr(shell_sq_wr[newer]),
        .shell_notify(shell_notify[newer]),
        .shell_cq_rd_valid(cq_rd_valid),
        .shell_cq_rd(shell_cq_rd),
        .shell_cq_wr_valid(cq_wr_valid),
        .shell_cq_wr(shell_cq_wr)
    );
  end

  // The register's address says which layout is looked at.
  assign send_data = {218'b0, shell_notify[araddr[0]], shell_sq_wr[araddr[0]], shell_sq_rd[araddr[0]]};
  assign sq_rd_stream = stream_rd[araddr[0]];
  assign sq_wr_stream = stream_wr[araddr[0]];
  assign sq_rd_valid = own_rd[araddr[0]];
  assign sq_wr_valid = own_wr[araddr[0]];

  assign {awready, wready, bvalid, arready, rvalid, recv_ready, send_valid, send_last, notify_valid} = '0;
  assign {rdata, sq_rd_address, sq_rd_length, sq_wr_address, sq_wr_length, send_keep, notify} = '0;
  logic unused;
  assign unused = &{
    1'b0, clk, rst_n, awvalid, awaddr, wvalid, wdata, wstrb, bready, arvalid, araddr, rready, sq_rd_ready, sq_wr_ready,
    cq_rd_stream, cq_wr_stream, recv_valid, recv_data, recv_keep, recv_last, send_ready, notify_ready
  };
endmodule
