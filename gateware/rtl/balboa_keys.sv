// The keys: memory that work requests and peers name, and the rights to it.
//
// The table is a memory: a question's answer stands in the next cycle. What has lost what it held opens nothing, and the
// engine fails (`has_flip`).
module balboa_keys
  import balboa_card_pkg::*;
  import balboa_engine_pkg::*;
  import balboa_number_pkg::*;
#(
    parameter int unsigned Places = KEY_PLACES
) (
    input  logic                     clk,
    input  logic                     rst_n,
    // Decides the order of the numbers.
    input  logic              [63:0] secret,
    // A question: may bytes be reached by a key of a domain, with a right? The answer stands from the next cycle on.
    input  logic                     asks,
    input  key_ask_t                 ask,
    output logic                     is_open,
    output logic              [63:0] iova,
    // Whether there is such a key.
    output logic                     is_there,
    // A key is made of a region. Its number stands in the cycle in which it is `made`, if there is room.
    input  logic                     makes,
    input  admin_create_key_t        region,
    output logic                     made,
    output logic                     has_room,
    output logic              [31:0] new_key,
    // The key that was asked for is given that region, or ends.
    input  logic                     changes,
    input  logic                     ends,
    // All keys end.
    input  logic                     clears,
    // A key has flipped; that is told.
    output logic                     has_flip,
    input  logic                     tells_fault
);
  localparam int unsigned PLACE_BITS = $clog2(Places);
  localparam int unsigned USE_BITS = 24 - PLACE_BITS;

  // What a question may ask for.
  localparam logic [31:0] RIGHTS = KEY_ACCESS_LOCAL_WRITE | KEY_ACCESS_REMOTE_WRITE | KEY_ACCESS_REMOTE_READ;

  typedef logic [$clog2(RIGHTS+1)-1:0] rights_t;

  typedef struct packed {
    logic is_valid;
    // How often its place was taken before: with the place, the number of the key.
    logic [USE_BITS-1:0] uses;
    logic [7:0] variant;
    logic [63:0] va;
    // All of a region is within reach.
    logic [ADDRESS_BITS:0] length;
    logic [ADDRESS_BITS-1:0] iova;
    logic [31:0] pdn;
    rights_t rights;
  } key_t;

  // ---- What is asked

  key_ask_t                  asked;
  logic     [          23:0] asked_plain;
  logic     [          23:0] ask_plain;
  logic     [PLACE_BITS-1:0] place;
  logic                      was_taken;
  key_t                      kept;
  logic                      is_flipped;
  logic                      was_asked;
  logic     [          64:0] end_of_range;
  logic     [          63:0] offset;

  assign ask_plain = plain_of(ask.key[31:8], secret);
  assign place = asked_plain[PLACE_BITS-1:0];
  assign is_there = was_taken && !is_flipped && kept.is_valid && kept.uses == asked_plain[23:PLACE_BITS] &&
      kept.variant == asked.key[7:0];
  assign offset = asked.va - kept.va;
  assign end_of_range = 65'(offset) + 65'(asked.length);
  assign is_open      = is_there && kept.pdn == asked.pdn && (32'(kept.rights) & asked.right) == asked.right &&
      asked.va >= kept.va && end_of_range <= 65'(kept.length);
  assign iova = 64'(kept.iova) + offset;

  always_ff @(posedge clk) begin
    if (asks) begin
      asked       <= ask;
      asked_plain <= ask_plain;
    end
  end

  always_ff @(posedge clk) begin
    if (!rst_n || clears) begin
      was_asked <= 1'b0;
      has_flip  <= 1'b0;
    end else begin
      was_asked <= asks;
      if (was_asked && was_taken && is_flipped) has_flip <= 1'b1;
      else if (tells_fault) has_flip <= 1'b0;
    end
  end

  // ---- What becomes of keys

  logic [PLACE_BITS-1:0] free;
  logic [  USE_BITS-1:0] uses;
  logic                  is_ready;
  logic [          23:0] number;
  logic                  writes;
  logic                  frees;
  key_t                  fresh;

  assign number  = number_of({uses, free}, secret);
  assign made    = makes && is_ready && !is_reserved(number, 1'b0);
  assign new_key = {number, number[7:0] ^ secret[7:0] ^ 8'(uses)};
  assign frees   = ends && is_there;
  assign writes  = made || frees || (changes && is_there);

  always_comb begin
    fresh          = kept;
    fresh.is_valid = !ends;
    fresh.length   = region.length[ADDRESS_BITS:0];
    fresh.iova     = region.iova[ADDRESS_BITS-1:0];
    fresh.pdn      = region.pdn;
    fresh.rights   = rights_t'(region.access);
    fresh.va       = (region.access & KEY_ACCESS_ZERO_BASED) != '0 ? '0 : region.va;
    if (makes) begin
      fresh.uses    = uses;
      fresh.variant = new_key[7:0];
    end
  end

  balboa_places #(
      .Places (Places),
      .Rest   (RESTING),
      .UseBits(USE_BITS)
  ) places (
      .clk,
      .rst_n,
      .clears,
      .has_room,
      .is_ready,
      .place (free),
      .uses,
      .takes (made),
      .skips (makes && is_ready && !made),
      .frees,
      .freed (place),
      .looked(place),
      .was_taken
  );

  balboa_table #(
      .Width($bits(key_t)),
      .Depth(Places)
  ) keys (
      .clk,
      .write_enable (writes),
      .write_address(made ? free : place),
      .write_data   (fresh),
      .read_enable  (asks),
      .read_address (ask_plain[PLACE_BITS-1:0]),
      .read_data    (kept),
      .is_flipped
  );
endmodule
