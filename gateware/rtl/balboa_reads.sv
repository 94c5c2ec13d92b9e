// Reads of host memory, of blocks of rings, of entries and of payload, of which many are under way. Their data comes in the
// order in which they were asked for.
//
// A read whose fault the driver refuses has no data; it ends once it is the oldest (`balboa_refusal`). So does one that host
// memory does not answer (`balboa_patience`).
module balboa_reads
  import balboa_host_pkg::*;
#(
    // log2 of the cycles in which host memory answers.
    parameter int unsigned PatienceBits = 30
) (
    input  logic                 clk,
    input  logic                 rst_n,
    input  logic                 clears,
    // Of blocks and of payload one is asked for at a time; entries wait for both, those of receive queues for all.
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
    input  logic                 entries_valid,
    output logic                 entries_ready,
    input  logic          [47:0] entries_address,
    input  logic          [27:0] entries_length,
    output logic                 entries_recv_valid,
    input  logic                 entries_recv_ready,
    output logic                 entries_fault,
    input  logic                 receives_valid,
    output logic                 receives_ready,
    input  logic          [47:0] receives_address,
    input  logic          [27:0] receives_length,
    output logic                 receives_recv_valid,
    input  logic                 receives_recv_ready,
    output logic                 receives_fault,
    // The shell.
    output logic                 sq_rd_valid,
    input  logic                 sq_rd_ready,
    output host_request_t        sq_rd,
    input  logic                 recv_valid,
    output logic                 recv_ready,
    input  logic                 recv_last,
    // How many bytes of its last beat count of the read whose data comes; of 0 all 64.
    output logic          [ 5:0] oldest_tail,
    // The driver refuses the fault of a read at that address; whether that has not ended.
    input  logic                 tells_refused,
    input  logic          [47:0] refused_address,
    output logic                 has_note,
    // The oldest read ends because nothing answers it.
    output logic                 expires
);
  typedef enum logic [1:0] {
    BLOCK,
    PAYLOAD,
    ENTRIES,
    RECEIVES
  } asker_t;

  typedef struct packed {
    asker_t      owner;
    logic [27:0] length;
    logic [47:0] address;
  } read_t;

  logic   has_room;
  logic   is_under_way;
  asker_t asker;
  read_t  oldest;
  asker_t owner;
  logic   comes;
  logic   ends;
  logic   may_end;
  logic   is_refused;
  logic   fails;
  logic   has_data;
  // What is shown holds until it is taken.
  logic   holds;
  asker_t held;

  always_comb begin
    asker = RECEIVES;
    if (entries_valid) asker = ENTRIES;
    if (block_valid) asker = BLOCK;
    if (payload_valid) asker = PAYLOAD;
    if (holds) asker = held;
  end

  always_ff @(posedge clk) begin
    if (!rst_n) holds <= 1'b0;
    else holds <= sq_rd_valid && !sq_rd_ready;
  end

  always_ff @(posedge clk) held <= asker;

  balboa_fifo #(
      .Width($bits(read_t)),
      .Depth(64)
  ) order (
      .clk,
      .rst_n,
      .in_valid (sq_rd_valid && sq_rd_ready),
      .in_ready (has_room),
      .in_data  ({asker, sq_rd.length, sq_rd.address}),
      .out_valid(is_under_way),
      .out_ready(is_refused || ends),
      .out_data (oldest)
  );

  assign owner       = oldest.owner;
  assign oldest_tail = oldest.length[5:0];
  assign has_data    = is_under_way && may_end;
  assign comes       = recv_valid && recv_ready;
  assign ends        = (comes && recv_last) || expires;
  assign fails       = is_refused || expires;

  balboa_refusal refusal (
      .tells  (tells_refused),
      .told   (refused_address),
      .address(oldest.address),
      .length (oldest.length),
      .*
  );
  balboa_patience #(
      .Bits(PatienceBits)
  ) patience (
      .ends (is_refused),
      .rests(recv_valid),
      .*
  );

  always_comb begin
    case (asker)
      PAYLOAD:  sq_rd = '{stream: '0, length: payload_length, address: payload_address};
      ENTRIES:  sq_rd = '{stream: '0, length: entries_length, address: entries_address};
      RECEIVES: sq_rd = '{stream: '0, length: receives_length, address: receives_address};
      default:  sq_rd = '{stream: '0, length: 28'd64, address: block_address};
    endcase
    // What comes with nothing under way is nobody's.
    case (owner)
      PAYLOAD:  recv_ready = !is_under_way || (has_data && payload_recv_ready);
      ENTRIES:  recv_ready = !is_under_way || (has_data && entries_recv_ready);
      RECEIVES: recv_ready = !is_under_way || (has_data && receives_recv_ready);
      default:  recv_ready = !is_under_way || (has_data && block_recv_ready);
    endcase
  end
  assign sq_rd_valid = (block_valid || payload_valid || entries_valid || receives_valid) && has_room;
  assign block_ready = sq_rd_ready && has_room && asker == BLOCK;
  assign payload_ready = sq_rd_ready && has_room && asker == PAYLOAD;
  assign entries_ready = sq_rd_ready && has_room && asker == ENTRIES;
  assign receives_ready = sq_rd_ready && has_room && asker == RECEIVES;
  assign block_recv_valid = recv_valid && has_data && owner == BLOCK;
  assign payload_recv_valid = recv_valid && has_data && owner == PAYLOAD;
  assign entries_recv_valid = recv_valid && has_data && owner == ENTRIES;
  assign receives_recv_valid = recv_valid && has_data && owner == RECEIVES;
  assign block_fault = fails && owner == BLOCK;
  assign payload_fault = fails && owner == PAYLOAD;
  assign entries_fault = fails && owner == ENTRIES;
  assign receives_fault = fails && owner == RECEIVES;
endmodule
