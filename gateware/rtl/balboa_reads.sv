// Reads of host memory, of blocks of rings and of payload, of which many are under way. Their data comes in the order in
// which they were asked for.
//
// A fault that the driver refuses is that of the oldest read: all before it have ended, and it has no data.
module balboa_reads
  import balboa_host_pkg::*;
(
    input  logic                 clk,
    input  logic                 rst_n,
    // Two askers, of which one asks at a time.
    input  logic                 block_valid,
    output logic                 block_ready,
    input  logic          [47:0] block_address,
    output logic                 block_recv_valid,
    input  logic                 block_recv_ready,
    output logic                 block_fault,
    input  logic                 payload_valid,
    output logic                 payload_ready,
    input  logic          [47:0] payload_address,
    input  logic          [27:0] payload_length,
    output logic                 payload_recv_valid,
    input  logic                 payload_recv_ready,
    output logic                 payload_fault,
    // The shell.
    output logic                 sq_rd_valid,
    input  logic                 sq_rd_ready,
    output host_request_t        sq_rd,
    input  logic                 recv_valid,
    output logic                 recv_ready,
    input  logic                 recv_last,
    input  logic                 fault_valid
);
  logic has_room;
  logic is_under_way;
  logic is_of_payload;

  balboa_fifo #(
      .Width(1),
      .Depth(64)
  ) order (
      .clk,
      .rst_n,
      .in_valid ((block_valid || payload_valid) && sq_rd_ready),
      .in_ready (has_room),
      .in_data  (payload_valid),
      .out_valid(is_under_way),
      .out_ready(fault_valid || (recv_valid && recv_ready && recv_last)),
      .out_data (is_of_payload)
  );

  assign sq_rd_valid = (block_valid || payload_valid) && has_room;
  assign sq_rd = payload_valid ?
      '{stream: '0, length: payload_length, address: payload_address} :
      '{stream: '0, length: 28'd64, address: block_address};
  assign block_ready = sq_rd_ready && has_room;
  assign payload_ready = sq_rd_ready && has_room;
  assign block_recv_valid = recv_valid && is_under_way && !is_of_payload;
  assign payload_recv_valid = recv_valid && is_under_way && is_of_payload;
  assign recv_ready = is_under_way && (is_of_payload ? payload_recv_ready : block_recv_ready);
  assign block_fault = fault_valid && is_under_way && !is_of_payload;
  assign payload_fault = fault_valid && is_under_way && is_of_payload;
endmodule
