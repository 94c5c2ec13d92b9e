// Completion queues that have fired and wait for room in the event ring, as far as the driver allows completions there.
//
// Each is told of once, with the sequence of its last arming that fired. They go on by their clients' turns, and those of
// a client in the order in which they fired.
module balboa_waiting
  import balboa_engine_pkg::*;
(
    input  logic             clk,
    input  logic             rst_n,
    // Unread events at which completions wait, 0 for none; and how many there are.
    input  logic      [31:0] limit,
    input  logic      [31:0] unread,
    // Whether a queue that fires has to wait. It does so, or fires again.
    output logic             holds,
    input  logic             waits,
    input  cq_place_t        place,
    input  logic      [ 7:0] client,
    input  logic      [29:0] sequence_,
    // A queue ends; all do.
    input  logic             forgets,
    input  cq_place_t        forgotten,
    input  logic             clears,
    // There is room: whose turn it is, now or some cycles later, and that it is taken.
    output logic             will_be_due,
    output logic             is_due,
    output cq_place_t        next,
    output logic      [29:0] next_sequence,
    input  logic             takes
);
  localparam int unsigned CLIENTS = 256;

  // Whether the queue that fires has a place in the line of a client; one that ended has it until its turn, without being
  // told of.
  logic                     is_in_line;
  logic                     has_waiting;
  logic                     is_next_waiting;
  logic      [ROW_BITS-1:0] row;
  logic      [ COLUMNS-1:0] column;
  logic      [ COLUMNS-1:0] next_column;
  cq_place_t                behind;
  logic      [ CLIENTS-1:0] has_line;
  cq_place_t                first               [CLIENTS];
  cq_place_t                last                [CLIENTS];
  logic      [         7:0] last_client;
  logic      [         7:0] next_client;
  logic                     has_next;
  // What is behind the next one, and its sequence, stand.
  logic                     is_read;
  cq_place_t                read;
  logic                     joins;
  logic                     leaves;
  cq_place_t                unused_waiting_next;
  logic      [ COLUMNS-1:0] unused_waiting_row;
  logic                     unused_has_in_line;
  cq_place_t                unused_in_line_next;
  logic      [ COLUMNS-1:0] unused_in_line_row;

  balboa_pick #(
      .Places(CLIENTS)
  ) turns (
      .due   (has_line),
      .last  (last_client),
      .is_due(has_next),
      .next  (next_client)
  );

  assign next = first[next_client];
  assign holds = limit != '0 && (has_waiting || unread >= limit);
  assign will_be_due = has_next && unread < limit;
  assign is_due = will_be_due && is_read && read == next && is_next_waiting;
  assign joins = waits && !is_in_line;
  assign leaves = takes || (has_next && is_read && read == next && !is_next_waiting && !waits);

  // ---- Queues that wait: one fires, ends, or is told of at a time

  assign next_column = column_of(next);
  always_comb begin
    row    = place[ROW_BITS-1:0];
    column = column_of(place);
    if (forgets) begin
      row    = forgotten[ROW_BITS-1:0];
      column = column_of(forgotten);
    end
    if (takes) begin
      row    = next[ROW_BITS-1:0];
      column = next_column;
    end
  end

  balboa_set #(
      .Places (CQ_PLACES),
      .RowBits(ROW_BITS)
  ) waiting (
      .clk,
      .rst_n,
      .clears,
      .row,
      .puts     (waits ? column : '0),
      .takes    (forgets || takes ? column : '0),
      .asked    (next),
      .is_in    (is_next_waiting),
      .asked_row(unused_waiting_row),
      .has_any  (has_waiting),
      .next     (unused_waiting_next),
      .passes   (1'b0)
  );
  balboa_set #(
      .Places (CQ_PLACES),
      .RowBits(ROW_BITS)
  ) in_line (
      .clk,
      .rst_n,
      .clears,
      .row      (joins ? place[ROW_BITS-1:0] : next[ROW_BITS-1:0]),
      .puts     (joins ? column : '0),
      .takes    (leaves ? next_column : '0),
      .asked    (place),
      .is_in    (is_in_line),
      .asked_row(unused_in_line_row),
      .has_any  (unused_has_in_line),
      .next     (unused_in_line_next),
      .passes   (1'b0)
  );

  // ---- The lines of clients

  balboa_ram #(
      .Width(30),
      .Depth(CQ_PLACES),
      .Style("block")
  ) sequences (
      .clk,
      .write_enable (waits),
      .write_address(place),
      .write_data   (sequence_),
      .read_enable  (1'b1),
      .read_address (next),
      .read_data    (next_sequence)
  );
  balboa_ram #(
      .Width(CQ_BITS),
      .Depth(CQ_PLACES)
  ) next_ones (
      .clk,
      .write_enable (joins && has_line[client]),
      .write_address(last[client]),
      .write_data   (place),
      .read_enable  (1'b1),
      .read_address (next),
      .read_data    (behind)
  );

  always_ff @(posedge clk) begin
    if (!rst_n || clears) begin
      has_line    <= '0;
      last_client <= '0;
      is_read     <= 1'b0;
    end else begin
      // What fires may change what is read.
      is_read <= has_next && !waits;
      if (leaves) begin
        last_client <= next_client;
        if (next == last[next_client]) has_line[next_client] <= 1'b0;
      end
      if (joins) has_line[client] <= 1'b1;
    end
  end

  always_ff @(posedge clk) begin
    read <= next;
    // One that joins and one that leaves do not come in the same cycle.
    if (leaves || (joins && !has_line[client])) first[joins?client : next_client] <= joins ? place : behind;
    if (joins) last[client] <= place;
  end
endmodule
