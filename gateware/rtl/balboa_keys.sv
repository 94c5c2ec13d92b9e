// The keys: memory that work requests and peers name, and the rights to it.
module balboa_keys
  import balboa_card_pkg::*;
  import balboa_number_pkg::*;
#(
    parameter int unsigned Keys = 256,
    localparam int unsigned KEY_BITS = $clog2(Keys)
) (
    input  logic        clk,
    input  logic        rst_n,
    // Decides the order of the numbers.
    input  logic [63:0] secret,
    // A question: may bytes be reached by a key of a domain, with a right? Held; the answer stands in the same cycle.
    input  logic [31:0] key,
    input  logic [31:0] pdn,
    input  logic [63:0] va,
    input  logic [31:0] length,
    input  logic [31:0] right,
    output logic        is_open,
    output logic [63:0] iova,
    // Whether there is such a key.
    output logic        is_there,
    // A key is made of a region. Its number stands in the cycle in which it is `made`, if there is room.
    input  logic        makes,
    input  logic [63:0] new_va,
    input  logic [63:0] new_length,
    input  logic [63:0] new_iova,
    input  logic [31:0] new_pdn,
    input  logic [31:0] new_access,
    output logic        made,
    output logic        has_room,
    output logic [31:0] new_key,
    // `key` is given that region, or ends.
    input  logic        changes,
    input  logic        ends,
    // All keys end.
    input  logic        clears
);
  typedef struct packed {
    logic [23:0] number;
    logic [7:0] variant;
    logic [63:0] va;
    logic [63:0] length;
    logic [63:0] iova;
    logic [31:0] pdn;
    logic [31:0] access;
  } key_t;

  logic [       Keys-1:0] is_valid;
  key_t                   regions      [Keys];
  logic [24-KEY_BITS-1:0] uses         [Keys];
  logic [   KEY_BITS-1:0] place;
  logic [   KEY_BITS-1:0] free;
  logic [           23:0] number;
  key_t                   region;
  key_t                   fresh;
  logic [           64:0] end_of_range;
  logic [           63:0] offset;

  // Which place a key's number has, and whether it is that key's now.
  assign place = KEY_BITS'(plain_of(key[31:8], secret, 1'b0));
  assign region = regions[place];
  assign is_there = is_valid[place] && region.number == key[31:8] && region.variant == key[7:0];
  assign offset = va - region.va;
  assign end_of_range = 65'(offset) + 65'(length);
  assign is_open      = is_there && region.pdn == pdn && (region.access & right) == right &&
      va >= region.va && end_of_range <= 65'(region.length);
  assign iova = region.iova + offset;

  always_comb begin
    free = '0;
    for (int i = Keys - 1; i >= 0; i--) if (!is_valid[i]) free = KEY_BITS'(i);
  end
  assign has_room = is_valid != '1;
  assign number   = number_of({uses[free], free}, secret, 1'b0);
  assign made     = makes && has_room && !is_reserved(number, 1'b0);
  assign new_key  = {number, number[7:0] ^ secret[7:0] ^ 8'(uses[free])};

  always_comb begin
    fresh        = region;
    fresh.length = new_length;
    fresh.iova   = new_iova;
    fresh.pdn    = new_pdn;
    fresh.access = new_access;
    fresh.va     = (new_access & KEY_ACCESS_ZERO_BASED) != '0 ? '0 : new_va;
    if (makes) begin
      fresh.number  = new_key[31:8];
      fresh.variant = new_key[7:0];
    end
  end

  always_ff @(posedge clk) begin
    if (made) regions[free] <= fresh;
    else if (changes && is_there) regions[place] <= fresh;
  end

  // The counts have no reset: a number rests also over the engine's.
  always_ff @(posedge clk) begin
    if (made || (makes && has_room)) uses[free] <= uses[free] + 1'b1;
  end

  always_ff @(posedge clk) begin
    if (!rst_n || clears) is_valid <= '0;
    else if (made) is_valid[free] <= 1'b1;
    else if (ends && is_there) is_valid[place] <= 1'b0;
  end
endmodule
