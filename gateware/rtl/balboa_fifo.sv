// A queue of records in registers or distributed RAM: valid and ready at both ends, nothing combinational between them.
module balboa_fifo #(
    parameter int unsigned Width = 64,
    // A power of two.
    parameter int unsigned Depth = 4,
    localparam int unsigned INDEX_BITS = $clog2(Depth)
) (
    input  logic             clk,
    input  logic             rst_n,
    input  logic             in_valid,
    output logic             in_ready,
    input  logic [Width-1:0] in_data,
    output logic             out_valid,
    input  logic             out_ready,
    output logic [Width-1:0] out_data
);
  logic [Width-1:0] places[Depth];
  // One bit more than an index has: the queue is full where they differ in that alone.
  logic [INDEX_BITS:0] write_count;
  logic [INDEX_BITS:0] read_count;
  logic [INDEX_BITS:0] level;

  assign level     = write_count - read_count;
  assign in_ready  = !level[INDEX_BITS];
  assign out_valid = level != '0;
  assign out_data  = places[read_count[INDEX_BITS-1:0]];

  always_ff @(posedge clk) begin
    if (!rst_n) begin
      write_count <= '0;
      read_count  <= '0;
    end else begin
      if (in_valid && in_ready) write_count <= write_count + 1'b1;
      if (out_valid && out_ready) read_count <= read_count + 1'b1;
    end
  end

  always_ff @(posedge clk) begin
    if (in_valid && in_ready) places[write_count[INDEX_BITS-1:0]] <= in_data;
  end
endmodule
