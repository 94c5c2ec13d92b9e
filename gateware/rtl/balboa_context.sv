// What a table has of the place whose turn it is. It is read as the turn begins, and kept as it becomes from cycle to cycle.
module balboa_context #(
    parameter int unsigned Width = 64,
    parameter int unsigned Depth = 4096,
    localparam int unsigned PLACE_BITS = $clog2(Depth)
) (
    input  logic                  clk,
    input  logic                  rst_n,
    input  logic                  clears,
    // A place begins with zeros.
    input  logic                  starts,
    input  logic [PLACE_BITS-1:0] started,
    // Another place's turn begins with the next cycle.
    input  logic                  reads,
    input  logic [PLACE_BITS-1:0] read,
    // The place whose turn it is: what it has, and has behind this cycle.
    input  logic [PLACE_BITS-1:0] place,
    output logic [     Width-1:0] now,
    input  logic [     Width-1:0] next,
    // The turn begins in this cycle, and what was read has flipped.
    output logic                  was_read,
    output logic                  is_flipped
);
  logic [Width-1:0] kept;
  logic [Width-1:0] held;

  assign now = was_read ? kept : held;

  always_ff @(posedge clk) begin
    held <= next;
    if (!rst_n || clears) was_read <= 1'b0;
    else was_read <= reads;
  end

  balboa_table #(
      .Width(Width),
      .Depth(Depth)
  ) places (
      .clk,
      .write_enable (starts || next != now),
      .write_address(starts ? started : place),
      .write_data   (starts ? '0 : next),
      .read_enable  (reads),
      .read_address (read),
      .read_data    (kept),
      .is_flipped
  );
endmodule
