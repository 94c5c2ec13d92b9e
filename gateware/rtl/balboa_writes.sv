// Writes of host memory, of blocks of rings and of payload, of which many are under way. Their data goes, and they end, in
// the order in which they were asked for.
//
// A fault that the driver refuses is that of the oldest write: all before it have ended. Its data goes all the same.
module balboa_writes
  import balboa_host_pkg::*;
(
    input  logic                  clk,
    input  logic                  rst_n,
    // Two askers, of which one asks at a time.
    input  logic                  block_valid,
    output logic                  block_ready,
    input  logic          [ 47:0] block_address,
    input  logic                  block_send_valid,
    output logic                  block_send_ready,
    input  logic          [511:0] block_send,
    output logic                  block_written,
    output logic                  block_fault,
    input  logic                  payload_valid,
    output logic                  payload_ready,
    input  logic          [ 47:0] payload_address,
    input  logic          [ 27:0] payload_length,
    input  logic                  payload_send_valid,
    output logic                  payload_send_ready,
    input  host_beat_t            payload_send,
    output logic                  payload_written,
    output logic                  payload_fault,
    // The shell.
    output logic                  sq_wr_valid,
    input  logic                  sq_wr_ready,
    output host_request_t         sq_wr,
    output logic                  send_valid,
    input  logic                  send_ready,
    output host_beat_t            send,
    input  logic                  cq_wr_valid,
    input  logic                  fault_valid
);
  logic has_room;
  logic has_data_room;
  logic asks;
  logic lacks_data;
  logic gives_payload;
  logic is_under_way;
  logic is_of_payload;

  assign asks = sq_wr_valid && sq_wr_ready;

  // Those that lack data.
  balboa_fifo #(
      .Width(1),
      .Depth(64)
  ) data (
      .clk,
      .rst_n,
      .in_valid (asks),
      .in_ready (has_data_room),
      .in_data  (payload_valid),
      .out_valid(lacks_data),
      .out_ready(send_valid && send_ready && send.last),
      .out_data (gives_payload)
  );
  // Those that have not ended.
  balboa_fifo #(
      .Width(1),
      .Depth(64)
  ) order (
      .clk,
      .rst_n,
      .in_valid (asks),
      .in_ready (has_room),
      .in_data  (payload_valid),
      .out_valid(is_under_way),
      .out_ready(cq_wr_valid || fault_valid),
      .out_data (is_of_payload)
  );

  assign sq_wr_valid = (block_valid || payload_valid) && has_room && has_data_room;
  assign sq_wr = payload_valid ?
      '{stream: '0, length: payload_length, address: payload_address} :
      '{stream: '0, length: 28'd64, address: block_address};
  assign block_ready = sq_wr_ready && has_room && has_data_room;
  assign payload_ready = block_ready;
  assign send_valid = lacks_data && (gives_payload ? payload_send_valid : block_send_valid);
  assign send = gives_payload ? payload_send : '{last: 1'b1, keep: '1, data: block_send};
  assign block_send_ready = send_ready && lacks_data && !gives_payload;
  assign payload_send_ready = send_ready && lacks_data && gives_payload;
  assign block_written = cq_wr_valid && is_under_way && !is_of_payload;
  assign block_fault = fault_valid && is_under_way && !is_of_payload;
  assign payload_written = cq_wr_valid && is_under_way && is_of_payload;
  assign payload_fault = fault_valid && is_under_way && is_of_payload;
endmodule
