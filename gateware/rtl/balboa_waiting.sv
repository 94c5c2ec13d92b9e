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
    // There is room: whose turn it is, and that it is taken.
    output logic             is_due,
    output cq_place_t        next,
    output logic      [29:0] next_sequence,
    input  logic             takes
);
  localparam int unsigned CLIENTS = 256;

  logic      [CQ_PLACES-1:0] is_waiting;
  // It has a place in the line of a client. One that ended has it until its turn, without being told of.
  logic      [CQ_PLACES-1:0] is_in_line;
  logic      [         29:0] sequences   [CQ_PLACES];
  cq_place_t                 behind      [CQ_PLACES];
  logic      [  CLIENTS-1:0] has_line;
  cq_place_t                 first       [  CLIENTS];
  cq_place_t                 last        [  CLIENTS];
  logic      [          7:0] last_client;
  logic      [          7:0] next_client;
  logic                      has_next;
  logic                      joins;
  logic                      leaves;

  balboa_pick #(
      .Places(CLIENTS)
  ) turns (
      .due   (has_line),
      .last  (last_client),
      .is_due(has_next),
      .next  (next_client)
  );

  assign next          = first[next_client];
  assign next_sequence = sequences[next];
  assign holds         = limit != '0 && (is_waiting != '0 || unread >= limit);
  assign is_due        = has_next && is_waiting[next] && unread < limit;
  assign joins         = waits && !is_in_line[place];
  assign leaves        = takes || (has_next && !is_waiting[next] && !waits);

  always_ff @(posedge clk) begin
    if (!rst_n || clears) begin
      is_waiting  <= '0;
      is_in_line  <= '0;
      has_line    <= '0;
      last_client <= '0;
    end else begin
      if (waits) is_waiting[place] <= 1'b1;
      if (forgets) is_waiting[forgotten] <= 1'b0;
      if (takes) is_waiting[next] <= 1'b0;
      if (leaves) begin
        is_in_line[next] <= 1'b0;
        last_client      <= next_client;
        if (next == last[next_client]) has_line[next_client] <= 1'b0;
      end
      if (joins) begin
        is_in_line[place] <= 1'b1;
        has_line[client]  <= 1'b1;
      end
    end
  end

  always_ff @(posedge clk) begin
    if (waits) sequences[place] <= sequence_;
    if (leaves) first[next_client] <= behind[next];
    if (joins) begin
      last[client] <= place;
      if (has_line[client]) behind[last[client]] <= place;
      else first[client] <= place;
    end
  end
endmodule
