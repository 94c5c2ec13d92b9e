// Joins pieces of data, each of which begins at byte 0 of a beat, to one run without gaps: the byte aligner of gathering.
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
    output logic               out_valid,
    input  logic               out_ready,
    output port_beat_t         out
);
  // Bytes that wait, less than 64 of them between two runs.
  logic [1023:0] held;
  logic [   7:0] count;
  logic          is_last;
  logic [ 511:0] masked;
  logic [1023:0] joined;

  assign in_ready  = !is_last && count < 8'd64;
  assign out_valid = count >= 8'd64 || is_last;

  always_comb begin
    out.last  = is_last && count <= 8'd64;
    out.bytes = count >= 8'd64 ? 7'd64 : count[6:0];
    out.data  = held[511:0];
    for (int unsigned i = 0; i < 64; i++) begin
      masked[8*i+:8] = 7'(i) < in_bytes ? in_data[8*i+:8] : 8'd0;
    end
    joined = held | ({512'd0, masked} << {count[5:0], 3'd0});
  end

  always_ff @(posedge clk) begin
    if (!rst_n) begin
      held    <= '0;
      count   <= '0;
      is_last <= 1'b0;
    end else if (in_valid && in_ready) begin
      held    <= joined;
      count   <= count + 8'(in_bytes);
      is_last <= in_last;
    end else if (out_valid && out_ready) begin
      held  <= held >> 512;
      count <= out.last ? 8'd0 : count - 8'd64;
      if (out.last) is_last <= 1'b0;
    end
  end
endmodule
