// Claims that wait for entries of their receive queues: those of a queue in the order in which they came.
//
// A claim has its tag for its place, of which the transport gives each to one at a time. The claim whose turn it is is read
// before it has that.
module balboa_claims
  import balboa_engine_pkg::*;
  import balboa_port_pkg::*;
(
    input  logic        clk,
    input  logic        rst_n,
    input  logic        clears,
    // The queue that is worked on: it is read, and its claims stand from the next cycle on.
    input  logic        reads,
    input  rq_place_t   read,
    input  rq_place_t   place,
    // Claims of it wait. One is to wait, too; the first one is answered, behind which none may wait.
    output logic        is_awaited,
    input  logic        parks,
    input  port_claim_t parked,
    input  logic        answers,
    output logic        answers_last,
    // Claims of any queue wait; they are all answered, without entries.
    output logic        has_any,
    input  logic        refuses,
    // A queue whose entries are there, and for which claims wait; one that lacks a slot, where there is room to read more.
    input  logic        is_slot_due,
    input  rq_place_t   slot_due,
    output logic        passes_slot,
    output rq_place_t   asked,
    input  logic        has_slot,
    input  logic        has_room,
    // The claim whose turn it is, and that a turn begins: queues go round.
    output logic        is_due,
    output rq_place_t   next_rq,
    output port_claim_t next_claim,
    input  logic        begins,
    input  logic        is_idle
);
  typedef enum logic [1:0] {
    LOOK,
    READ,
    CLAIM,
    READY
  } state_t;

  // Tags, in the order of a queue.
  typedef struct packed {
    port_tag_t first;
    port_tag_t last;
  } line_t;

  state_t                  state;
  line_t                   line;
  line_t                   next_line;
  line_t                   written;
  logic                    writes;
  port_tag_t               behind     [256];
  port_qpn_t               qpns       [256];
  logic                    may_ask;
  logic                    looks;
  logic      [COLUMNS-1:0] column;
  logic      [COLUMNS-1:0] unused_row;

  // ---- Queues for which claims wait

  assign column = column_of(place);

  balboa_set #(
      .Places (RQ_PLACES),
      .RowBits(ROW_BITS)
  ) waiting (
      .clk,
      .rst_n,
      .clears,
      .row      (place[ROW_BITS-1:0]),
      .puts     (parks ? column : '0),
      .takes    (answers_last ? column : '0),
      .asked    (place),
      .is_in    (is_awaited),
      .asked_row(unused_row),
      .has_any,
      .next     (asked),
      .passes   (looks && !is_slot_due)
  );

  assign answers_last = answers && line.first == line.last;
  assign writes = parks || answers;
  always_comb begin
    written = '{first: is_awaited ? line.first : parked.tag, last: parked.tag};
    if (answers) written = '{first: behind[line.first], last: line.last};
  end

  // One memory for each who reads.
  balboa_ram #(
      .Width($bits(line_t)),
      .Depth(RQ_PLACES)
  ) lines (
      .clk,
      .write_enable (writes),
      .write_address(place),
      .write_data   (written),
      .read_enable  (reads),
      .read_address (read),
      .read_data    (line)
  );
  balboa_ram #(
      .Width($bits(line_t)),
      .Depth(RQ_PLACES)
  ) next_lines (
      .clk,
      .write_enable (writes),
      .write_address(place),
      .write_data   (written),
      .read_enable  (state == READ),
      .read_address (next_rq),
      .read_data    (next_line)
  );

  always_ff @(posedge clk) begin
    if (parks) begin
      qpns[parked.tag] <= parked.qpn;
      if (is_awaited) behind[line.last] <= parked.tag;
    end
  end

  // ---- The claim whose turn it is

  // Entries that were not asked for yet, or that were forgotten.
  assign may_ask     = has_any && (refuses || (has_room && !has_slot));
  assign looks       = state == LOOK && is_idle && !begins;
  assign passes_slot = looks && is_slot_due;
  assign is_due      = state == READY;

  always_ff @(posedge clk) begin
    if (!rst_n || clears) begin
      state <= LOOK;
    end else begin
      case (state)
        READ:    state <= CLAIM;
        CLAIM:   state <= READY;
        READY:   ;
        default: if (looks && (is_slot_due || may_ask)) state <= READ;
      endcase
      // What was read may be of before that turn.
      if (begins) state <= LOOK;
    end
  end

  always_ff @(posedge clk) begin
    if (state == LOOK) next_rq <= is_slot_due ? slot_due : asked;
    if (state == CLAIM) next_claim <= '{qpn: qpns[next_line.first], tag: next_line.first};
  end
endmodule
