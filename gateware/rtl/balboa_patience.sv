// Host memory owes an answer to each request of a direction. Where the oldest one has none for too long, none will come: it ends
// as if the driver had refused its fault, and the engine stops, for nobody knows of which request what comes later is.
module balboa_patience #(
    // log2 of the cycles.
    parameter int unsigned Bits = 30
) (
    input  logic clk,
    input  logic rst_n,
    // The oldest request: there is one; it ends by itself.
    input  logic is_under_way,
    input  logic ends,
    // A part of its answer comes; this side is what it waits for, and no time passes.
    input  logic comes,
    input  logic rests,
    // It ends without an answer.
    output logic expires
);
  logic [Bits-1:0] waited;

  assign expires = is_under_way && !rests && !comes && !ends && waited == '1;

  always_ff @(posedge clk) begin
    if (!rst_n || !is_under_way || comes || ends || expires) waited <= '0;
    else if (!rests) waited <= waited + 1'b1;
  end
endmodule
