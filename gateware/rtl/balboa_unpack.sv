// Cuts a run of bytes into pieces, each of which begins at byte 0 of a beat: the byte aligner of scattering.
module balboa_unpack
  import balboa_port_pkg::*;
(
    input  logic              clk,
    input  logic              rst_n,
    // A beat of the run: it begins at byte 0, and less than 64 bytes count in the last one alone.
    input  logic              in_valid,
    output logic              in_ready,
    input  port_beat_t        in,
    // A piece of so many bytes begins; the one before has ended.
    input  logic              begins,
    input  logic       [12:0] length,
    output logic              out_valid,
    input  logic              out_ready,
    output port_beat_t        out
);
  // Bytes that wait.
  logic [1023:0] held;
  logic [   7:0] count;
  // Bytes of the piece that are still to be given, and of the next beat.
  logic [  12:0] left;
  logic [   6:0] wanted;
  logic [ 511:0] masked;
  logic [1023:0] rest;
  logic [   7:0] rest_count;
  logic          takes;
  logic          gives;

  assign wanted    = left >= 13'd64 ? 7'd64 : left[6:0];
  assign in_ready  = count <= 8'd64;
  assign out_valid = left != '0 && count >= 8'(wanted);
  assign takes     = in_valid && in_ready;
  assign gives     = out_valid && out_ready;

  always_comb begin
    out.last  = left <= 13'd64;
    out.bytes = wanted;
    for (int unsigned i = 0; i < 64; i++) begin
      // What stands behind the beat may change while it waits.
      out.data[8*i+:8] = 7'(i) < wanted ? held[8*i+:8] : 8'd0;
      masked[8*i+:8]   = 7'(i) < in.bytes ? in.data[8*i+:8] : 8'd0;
    end
    rest       = gives ? held >> {wanted, 3'd0} : held;
    rest_count = gives ? count - 8'(wanted) : count;
  end

  always_ff @(posedge clk) begin
    if (!rst_n) begin
      held  <= '0;
      count <= '0;
      left  <= '0;
    end else begin
      held  <= takes ? rest | ({512'd0, masked} << {rest_count[6:0], 3'd0}) : rest;
      count <= takes ? rest_count + 8'(in.bytes) : rest_count;
      if (begins) left <= length;
      else if (gives) left <= left - 13'(wanted);
    end
  end
endmodule
