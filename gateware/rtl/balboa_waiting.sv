// Completion queues that have fired and wait for room in the event ring, as far as the driver allows completions there.
//
// Each is told of once, with the sequence of its last arming that fired. They go on by their clients' turns, and those of
// a client by theirs.
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
  logic      [CQS-1:0] is_waiting;
  logic      [    7:0] clients     [CQS];
  logic      [   29:0] sequences   [CQS];
  logic      [    7:0] last_client;
  cq_place_t           last;

  assign holds         = limit != '0 && (is_waiting != '0 || unread >= limit);
  assign is_due        = is_waiting != '0 && unread < limit;
  assign next_sequence = sequences[next];

  // The first behind the last one: by its client, then by its place.
  always_comb begin
    logic [7+CQ_BITS:0] first;
    logic [7+CQ_BITS:0] distance;
    next  = '0;
    first = '1;
    for (int i = 0; i < CQS; i++) begin
      distance = {clients[i] - last_client - 8'd1, cq_place_t'(i) - last - 1'b1};
      if (is_waiting[i] && distance <= first) begin
        first = distance;
        next  = cq_place_t'(i);
      end
    end
  end

  always_ff @(posedge clk) begin
    if (!rst_n || clears) begin
      is_waiting  <= '0;
      last_client <= '0;
      last        <= '0;
    end else begin
      if (waits) is_waiting[place] <= 1'b1;
      if (forgets) is_waiting[forgotten] <= 1'b0;
      if (takes) begin
        is_waiting[next] <= 1'b0;
        last_client      <= clients[next];
        last             <= next;
      end
    end
  end

  always_ff @(posedge clk) begin
    if (waits) begin
      clients[place]   <= client;
      sequences[place] <= sequence_;
    end
  end
endmodule
