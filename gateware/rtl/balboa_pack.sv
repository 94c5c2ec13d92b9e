// Joins pieces of data, each of which begins at byte 0 of a beat, to runs without gaps: the byte aligner of gathering.
//
// A beat comes and one goes in each cycle.
module balboa_pack
  import balboa_port_pkg::*;
(
    input  logic               clk,
    input  logic               rst_n,
    // A beat of a piece. `in_bytes` may be anything up to 64 in each of them.
    input  logic               in_valid,
    output logic               in_ready,
    input  logic       [511:0] in_data,
    input  logic       [  6:0] in_bytes,
    // It is the last of the run.
    input  logic               in_last,
    // Bytes of a run wait whose end has come.
    output logic               has_last,
    output logic               out_valid,
    input  logic               out_ready,
    output port_beat_t         out
);
  // Bytes that wait: behind the end of a run none.
  logic [1023:0] held;
  logic [   7:0] count;
  logic          gives;
  logic [1023:0] rest;
  logic [   7:0] rest_count;
  logic [ 511:0] masked;

  assign out_valid = count >= 8'd64 || has_last;
  assign gives     = out_valid && out_ready;
  assign in_ready  = has_last ? gives && out.last : count < 8'd64 || gives;

  always_comb begin
    out.last  = has_last && count <= 8'd64;
    out.bytes = count >= 8'd64 ? 7'd64 : count[6:0];
    out.data  = held[511:0];
    for (int unsigned i = 0; i < 64; i++) begin
      masked[8*i+:8] = 7'(i) < in_bytes ? in_data[8*i+:8] : 8'd0;
    end
    rest       = gives ? held >> 512 : held;
    rest_count = count;
    if (gives) rest_count = out.last ? 8'd0 : count - 8'd64;
  end

  always_ff @(posedge clk) begin
    if (!rst_n) begin
      held    <= '0;
      count   <= '0;
      has_last <= 1'b0;
    end else if (in_valid && in_ready) begin
      held    <= rest | ({512'd0, masked} << {rest_count[5:0], 3'd0});
      count   <= rest_count + 8'(in_bytes);
      has_last <= in_last;
    end else begin
      held  <= rest;
      count <= rest_count;
      if (gives && out.last) has_last <= 1'b0;
    end
  end
endmodule
