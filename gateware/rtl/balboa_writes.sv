// Writes of host memory, of blocks of rings and of payload, of which many are under way. Their data goes, and they end, in
// the order in which they were asked for. Blocks wait here for their data's turn, in their order.
//
// A write whose fault the driver refuses ends once it is the oldest (`balboa_refusal`). Its data goes all the same. So does one
// that host memory does not answer (`balboa_patience`).
module balboa_writes
  import balboa_host_pkg::*;
#(
    // log2 of the cycles in which host memory answers.
    parameter int unsigned PatienceBits = 30
) (
    input  logic                  clk,
    input  logic                  rst_n,
    // A block with its data; of one that is posted nobody waits for the end.
    input  logic                  block_valid,
    output logic                  block_ready,
    input  logic                  block_is_posted,
    input  logic          [ 47:0] block_address,
    input  logic          [511:0] block_data,
    output logic                  block_written,
    output logic                  block_fault,
    // A posted one is out of reach; that is told.
    output logic                  has_fault,
    input  logic                  tells_fault,
    input  logic                  clears,
    output logic                  is_quiet,
    // Payload.
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
    // The driver refuses the fault of a write at that address; whether that has not ended.
    input  logic                  tells_refused,
    input  logic          [ 47:0] refused_address,
    output logic                  has_note,
    // The oldest write ends because nothing answers it.
    output logic                  expires
);
  // Blocks that wait here.
  localparam int unsigned BLOCKS = 16;

  typedef struct packed {
    logic        is_posted;
    logic [47:0] address;
  } block_t;

  typedef struct packed {
    logic is_payload;
    logic is_posted;
  } owner_t;

  typedef struct packed {
    owner_t      owner;
    logic [27:0] length;
    logic [47:0] address;
  } write_t;

  // ---- Blocks

  logic           has_block;
  logic           has_block_room;
  logic           takes_block;
  block_t         next_block;
  logic           has_block_data;
  logic           has_block_data_room;
  logic           takes_block_data;
  logic   [511:0] next_block_data;

  assign block_ready = has_block_room && has_block_data_room;

  balboa_fifo #(
      .Width($bits(block_t)),
      .Depth(BLOCKS)
  ) blocks (
      .clk,
      .rst_n,
      .in_valid (block_valid && block_ready),
      .in_ready (has_block_room),
      .in_data  ({block_is_posted, block_address}),
      .out_valid(has_block),
      .out_ready(takes_block),
      .out_data (next_block)
  );
  balboa_fifo #(
      .Width(512),
      .Depth(BLOCKS)
  ) block_datas (
      .clk,
      .rst_n,
      .in_valid (block_valid && block_ready),
      .in_ready (has_block_data_room),
      .in_data  (block_data),
      .out_valid(has_block_data),
      .out_ready(takes_block_data),
      .out_data (next_block_data)
  );

  // ---- Requests

  logic   has_room;
  logic   has_data_room;
  logic   asks;
  // What is shown holds until it is taken.
  logic   holds_payload;
  logic   asks_payload;
  owner_t asker;
  logic   lacks_data;
  owner_t giver;
  logic   is_under_way;
  write_t oldest;
  owner_t owner;
  logic   may_end;
  logic   is_refused;
  logic   fails;
  logic   ends;

  assign asks_payload = holds_payload || !has_block;
  assign asker = '{is_payload: asks_payload, is_posted: !asks_payload && next_block.is_posted};
  assign sq_wr_valid = (asks_payload ? payload_valid : has_block) && has_room && has_data_room;
  assign sq_wr = asks_payload ?
      '{stream: '0, length: payload_length, address: payload_address} :
      '{stream: '0, length: 28'd64, address: next_block.address};
  assign asks = sq_wr_valid && sq_wr_ready;
  assign takes_block = asks && !asks_payload;
  assign payload_ready = sq_wr_ready && has_room && has_data_room && asks_payload;

  always_ff @(posedge clk) begin
    if (!rst_n) holds_payload <= 1'b0;
    else holds_payload <= sq_wr_valid && !sq_wr_ready && asks_payload;
  end

  // Those that lack data.
  balboa_fifo #(
      .Width($bits(owner_t)),
      .Depth(64)
  ) data (
      .clk,
      .rst_n,
      .in_valid (asks),
      .in_ready (has_data_room),
      .in_data  (asker),
      .out_valid(lacks_data),
      .out_ready(send_valid && send_ready && send.last),
      .out_data (giver)
  );
  // Those that have not ended.
  balboa_fifo #(
      .Width($bits(write_t)),
      .Depth(64)
  ) order (
      .clk,
      .rst_n,
      .in_valid (asks),
      .in_ready (has_room),
      .in_data  ({asker, sq_wr.length, sq_wr.address}),
      .out_valid(is_under_way),
      .out_ready(ends || fails),
      .out_data (oldest)
  );
  assign owner = oldest.owner;

  assign send_valid = lacks_data && (giver.is_payload ? payload_send_valid : has_block_data);
  assign send = giver.is_payload ? payload_send : '{last: 1'b1, keep: '1, data: next_block_data};
  assign payload_send_ready = send_ready && lacks_data && giver.is_payload;
  assign takes_block_data = send_ready && lacks_data && !giver.is_payload;

  // ---- Ends

  // Completions that have come, of those behind one whose fault is refused, too. With nothing under way they are nobody's.
  logic [6:0] ended;
  logic       is_of_block;

  balboa_refusal refusal (
      .tells  (tells_refused),
      .told   (refused_address),
      .address(oldest.address),
      .length (oldest.length),
      .ends   (ends || expires),
      .*
  );
  balboa_patience #(
      .Bits(PatienceBits)
  ) patience (
      .ends (ends || is_refused),
      .comes(1'b0),
      .rests(lacks_data),
      .*
  );

  assign fails           = is_refused || expires;
  assign ends            = is_under_way && may_end && (cq_wr_valid || ended != '0);
  assign is_of_block     = !owner.is_payload && !owner.is_posted;
  assign block_written   = ends && is_of_block;
  assign block_fault     = fails && is_of_block;
  assign payload_written = ends && owner.is_payload;
  assign payload_fault   = fails && owner.is_payload;
  assign is_quiet        = !has_block && !is_under_way;

  always_ff @(posedge clk) begin
    if (!rst_n || !is_under_way) ended <= '0;
    else ended <= ended + 7'(cq_wr_valid) - 7'(ends);
  end

  always_ff @(posedge clk) begin
    if (!rst_n || clears) has_fault <= 1'b0;
    else if (is_refused && owner.is_posted) has_fault <= 1'b1;
    else if (tells_fault) has_fault <= 1'b0;
  end
endmodule
