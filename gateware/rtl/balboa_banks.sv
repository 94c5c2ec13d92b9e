// Banks of a memory, which queue pairs take for a time. Some are of the clients of one doorbell page alone, so that nobody
// takes all from others; as many are of all.
module balboa_banks
  import balboa_engine_pkg::*;
(
    input  logic                      clk,
    input  logic                      rst_n,
    input  logic                      clears,
    // Whether there is one for a client, and which.
    input  logic      [          7:0] client,
    output logic                      has_free,
    output logic      [BANK_BITS-1:0] free,
    // A queue pair takes it.
    input  logic                      takes,
    input  qp_place_t                 taker,
    // One is free again; all of a queue pair are.
    input  logic                      frees,
    input  logic      [BANK_BITS-1:0] freed,
    input  logic                      forgets,
    input  qp_place_t                 forgotten
);
  localparam int unsigned OWN_BITS = $clog2(OWN_BANKS);
  localparam int unsigned SHARED = BANKS / 2;

  logic      [    BANKS-1:0] is_used;
  qp_place_t                 takers     [BANKS];
  logic      [OWN_BANKS-1:0] own_free;
  logic      [ OWN_BITS-1:0] own;
  logic                      has_shared;
  logic      [BANK_BITS-2:0] shared;

  // The highest bit says that it is of all.
  assign own_free = ~is_used[{1'b0, page_of(client), OWN_BITS'(0)}+:OWN_BANKS];
  always_comb begin
    own = '0;
    for (int i = OWN_BANKS - 1; i >= 0; i--) if (own_free[i]) own = OWN_BITS'(i);
  end
  balboa_pick #(
      .Places(SHARED)
  ) of_all (
      .due   (~is_used[BANKS-1:SHARED]),
      .last  ('1),
      .is_due(has_shared),
      .next  (shared)
  );
  assign has_free = own_free != '0 || has_shared;
  assign free     = own_free != '0 ? {1'b0, page_of(client), own} : {1'b1, shared};

  always_ff @(posedge clk) begin
    if (!rst_n || clears) begin
      is_used <= '0;
    end else begin
      for (int i = 0; i < BANKS; i++) if (forgets && takers[i] == forgotten) is_used[i] <= 1'b0;
      if (frees) is_used[freed] <= 1'b0;
      if (takes) is_used[free] <= 1'b1;
    end
  end

  always_ff @(posedge clk) begin
    if (takes) takers[free] <= taker;
  end
endmodule
