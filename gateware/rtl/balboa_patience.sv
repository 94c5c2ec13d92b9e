// Host memory owes an answer to each request of a direction. Where the oldest one has none for too long, none will come.
module balboa_patience #(
    // log2 of the cycles.
    parameter int unsigned Bits = 30
) (
    input  logic clk,
    input  logic rst_n,
    // A request is taken; the oldest one ends.
    input  logic asks,
    input  logic ends,
    // A part of its answer comes; this side is what it waits for, and no time passes.
    input  logic comes,
    input  logic rests,
    // The oldest one ends without an answer.
    output logic expires
);
  // No more are under way than `balboa_reads` and `balboa_writes` keep the order of.
  logic [     6:0] open;
  logic [Bits-1:0] waited;

  assign expires = open != '0 && !rests && !comes && !ends && waited == '1;

  always_ff @(posedge clk) begin
    if (!rst_n) begin
      open   <= '0;
      waited <= '0;
    end else begin
      // What comes behind the end of all is nobody's.
      open <= open + 7'(asks) - 7'((ends && open != '0) || expires);
      if (open == '0 || comes || ends || expires) waited <= '0;
      else if (!rests) waited <= waited + 1'b1;
    end
  end
endmodule
