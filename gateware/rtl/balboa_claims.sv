// Claims that wait for entries of their receive queues: those of a queue in the order in which they came.
//
// A queue pair has one claim under way at most.
module balboa_claims
  import balboa_engine_pkg::*;
  import balboa_port_pkg::*;
(
    input  logic                        clk,
    input  logic                        rst_n,
    input  logic                        clears,
    // A claim of a queue pair is to wait.
    input  logic                        parks,
    input  qp_place_t                   parked,
    input  rq_place_t                   parked_rq,
    input  port_claim_t                 parked_claim,
    // The first one of a queue is answered.
    input  logic                        answers,
    input  rq_place_t                   answered_rq,
    // Queues of which claims wait; they are all answered, without entries.
    output logic        [RQ_PLACES-1:0] waiting,
    input  logic                        refuses,
    // The entries of a queue: they are asked for, have come, are forgotten; those that are there, and room to read more.
    input  logic                        asks,
    input  rq_place_t                   asked,
    input  logic                        arrives,
    input  rq_place_t                   arrived,
    input  logic                        forgets,
    input  rq_place_t                   forgotten,
    input  logic        [RQ_PLACES-1:0] there,
    input  logic                        has_room,
    // The claim whose turn it is, and that it is taken: queues go round.
    output logic                        is_due,
    output rq_place_t                   next_rq,
    output port_claim_t                 next_claim,
    input  logic                        takes
);
  logic        [RQ_PLACES-1:0] pending;
  logic        [RQ_PLACES-1:0] due;
  rq_place_t                   last_rq;
  qp_place_t                   first   [RQ_PLACES];
  qp_place_t                   last    [RQ_PLACES];
  // The queue pair of the next claim, and the claims, of queue pairs.
  qp_place_t                   behind  [QP_PLACES];
  port_claim_t                 claims  [QP_PLACES];

  always_comb begin
    due = there;
    // Entries that were not asked for yet, or that were forgotten.
    if (has_room) due |= ~pending;
    if (refuses) due = '1;
    due &= waiting;
  end
  balboa_pick #(
      .Places(RQ_PLACES)
  ) turns (
      .due,
      .last(last_rq),
      .is_due,
      .next(next_rq)
  );
  assign next_claim = claims[first[next_rq]];

  always_ff @(posedge clk) begin
    if (!rst_n || clears) begin
      waiting <= '0;
      pending <= '0;
    end else begin
      if (parks) waiting[parked_rq] <= 1'b1;
      if (answers && first[answered_rq] == last[answered_rq]) waiting[answered_rq] <= 1'b0;
      if (asks) pending[asked] <= 1'b1;
      if (arrives) pending[arrived] <= 1'b0;
      if (forgets) pending[forgotten] <= 1'b0;
    end
  end

  always_ff @(posedge clk) begin
    if (!rst_n) last_rq <= '0;
    else if (takes) last_rq <= next_rq;
  end

  always_ff @(posedge clk) begin
    if (parks) begin
      claims[parked]  <= parked_claim;
      last[parked_rq] <= parked;
      if (waiting[parked_rq]) behind[last[parked_rq]] <= parked;
      else first[parked_rq] <= parked;
    end
    if (answers) first[answered_rq] <= behind[first[answered_rq]];
  end
endmodule
