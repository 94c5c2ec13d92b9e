// A memory with one port to write and one to read, as URAM, block RAM and distributed RAM have them all.
//
// What is read stands in `read_data` in the next cycle. Whoever reads a place in the cycle in which it is written gets
// either content: the user does not ask.
module balboa_ram #(
    parameter int unsigned Width = 64,
    parameter int unsigned Depth = 4096,
    // Narrow memories are better off in block RAM ("block"). A simulation has no attributes.
    /* verilator lint_off UNUSEDPARAM */
    parameter string Style = "auto",
    /* verilator lint_on UNUSEDPARAM */
    localparam int unsigned ADDRESS_BITS = $clog2(Depth)
) (
    input  logic                    clk,
    input  logic                    write_enable,
    input  logic [ADDRESS_BITS-1:0] write_address,
    input  logic [       Width-1:0] write_data,
    input  logic                    read_enable,
    input  logic [ADDRESS_BITS-1:0] read_address,
    output logic [       Width-1:0] read_data
);
  (* ram_style = Style *)
  logic [Width-1:0] places[Depth];

  always_ff @(posedge clk) begin
    if (write_enable) places[write_address] <= write_data;
    if (read_enable) read_data <= places[read_address];
  end
endmodule
