// A memory of records that tells a record which is not what was written: each word has a bit of parity. Two bits of a word
// that flip are not found.
//
// It reads and writes as `balboa_ram` does.
module balboa_table #(
    parameter int unsigned Width = 64,
    parameter int unsigned Depth = 4096,
    parameter string Style = "auto",
    localparam int unsigned ADDRESS_BITS = $clog2(Depth)
) (
    input  logic                    clk,
    input  logic                    write_enable,
    input  logic [ADDRESS_BITS-1:0] write_address,
    input  logic [       Width-1:0] write_data,
    input  logic                    read_enable,
    input  logic [ADDRESS_BITS-1:0] read_address,
    output logic [       Width-1:0] read_data,
    // What was read has flipped. Of a place that was never written it may be either.
    output logic                    is_flipped
);
  // A word and its parity are as wide as a URAM.
  localparam int unsigned WORD = 71;
  localparam int unsigned WORDS = (Width + WORD - 1) / WORD;

  logic [WORDS-1:0][WORD-1:0] in;
  logic [WORDS-1:0][  WORD:0] kept_in;
  logic [WORDS-1:0][  WORD:0] kept_out;
  logic [WORDS-1:0][WORD-1:0] out;
  logic [WORDS-1:0]           flips;

  assign in = (WORDS * WORD)'(write_data);
  always_comb begin
    for (int i = 0; i < WORDS; i++) begin
      kept_in[i] = {^in[i], in[i]};
      flips[i]   = ^kept_out[i];
      out[i]     = kept_out[i][WORD-1:0];
    end
  end
  assign is_flipped = flips != '0;
  assign read_data  = Width'(out);

  balboa_ram #(
      .Width(WORDS * (WORD + 1)),
      .Depth(Depth),
      .Style(Style)
  ) ram (
      .clk,
      .write_enable,
      .write_address,
      .write_data(kept_in),
      .read_enable,
      .read_address,
      .read_data (kept_out)
  );
endmodule
