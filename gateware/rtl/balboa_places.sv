// The free places of a table, in the order in which they are taken, and how often each was taken: what the numbers of the
// table's objects are made of (`balboa_number_pkg`).
//
// A place that is freed goes behind all that are free, and some always are: so a number rests until its place was as often
// at the head of that line as there are counts. Neither a reset nor `clears` makes a place free sooner: those that were not
// taken since have their turn first, from the one behind the last that was taken. Nothing has to be written for that.
module balboa_places #(
    parameter int unsigned Places = 4096,
    // Places that are never in use.
    parameter int unsigned Rest = 16,
    // Bits of the counts.
    parameter int unsigned UseBits = 8,
    // Places that are looked at in a cycle.
    parameter int unsigned Looks = 1,
    localparam int unsigned PLACE_BITS = $clog2(Places)
) (
    input  logic                                  clk,
    input  logic                                  rst_n,
    // All places are free.
    input  logic                                  clears,
    // There is room for one more; its place, and how often that was taken, stand some cycles later.
    output logic                                  has_room,
    output logic                                  is_ready,
    output logic [PLACE_BITS-1:0]                 place,
    output logic [   UseBits-1:0]                 uses,
    // It is taken; or that number is not to be drawn.
    input  logic                                  takes,
    input  logic                                  skips,
    // A place is free again.
    input  logic                                  frees,
    input  logic [PLACE_BITS-1:0]                 freed,
    // Whether a place was taken since all were free: else the table has nothing there.
    input  logic [     Looks-1:0][PLACE_BITS-1:0] looked,
    output logic [     Looks-1:0]                 was_taken
);
  typedef enum logic [1:0] {
    LOOK,
    LINE,
    COUNTED,
    READY
  } state_t;

  state_t                  state;
  // The first place that was taken since all were free, and how many others followed it. `first` has no reset: places rest
  // also over the engine's.
  logic   [PLACE_BITS-1:0] first;
  logic   [  PLACE_BITS:0] taken;
  logic   [  PLACE_BITS:0] in_use;
  // Those that were freed since.
  logic   [  PLACE_BITS:0] line_head;
  logic   [  PLACE_BITS:0] line_tail;
  logic   [PLACE_BITS-1:0] line_place;
  logic   [PLACE_BITS-1:0] next_place;
  logic   [   UseBits-1:0] counted;
  logic                    has_untaken;

  assign has_room    = 32'(in_use) < Places - Rest;
  assign is_ready    = state == READY && has_room;
  assign has_untaken = !taken[PLACE_BITS];
  assign next_place  = state == LINE ? line_place : first + taken[PLACE_BITS-1:0];
  always_comb begin
    for (int i = 0; i < Looks; i++) was_taken[i] = {1'b0, looked[i] - first} < taken;
  end

  balboa_ram #(
      .Width(PLACE_BITS),
      .Depth(Places),
      .Style("block")
  ) line (
      .clk,
      .write_enable (frees),
      .write_address(line_tail[PLACE_BITS-1:0]),
      .write_data   (freed),
      .read_enable  (state == LOOK),
      .read_address (line_head[PLACE_BITS-1:0]),
      .read_data    (line_place)
  );

  // The counts have no reset either, and need no first value.
  balboa_ram #(
      .Width(UseBits),
      .Depth(Places),
      .Style("block")
  ) counts (
      .clk,
      .write_enable (takes),
      .write_address(place),
      .write_data   (uses + 1'b1),
      .read_enable  (state == LOOK || state == LINE),
      .read_address (next_place),
      .read_data    (counted)
  );

  always_ff @(posedge clk) begin
    if (!rst_n || clears) begin
      state     <= LOOK;
      taken     <= '0;
      in_use    <= '0;
      line_head <= '0;
      line_tail <= '0;
    end else begin
      case (state)
        LOOK: begin
          if (has_untaken) state <= COUNTED;
          else if (line_head != line_tail) state <= LINE;
        end
        LINE:    state <= COUNTED;
        COUNTED: state <= READY;
        default: if (takes) state <= LOOK;
      endcase
      if (takes && has_untaken) taken <= taken + 1'b1;
      if (takes && !has_untaken) line_head <= line_head + 1'b1;
      if (frees) line_tail <= line_tail + 1'b1;
      in_use <= in_use + (PLACE_BITS + 1)'(takes) - (PLACE_BITS + 1)'(frees);
    end
  end

  always_ff @(posedge clk) begin
    if (!rst_n || clears) first <= first + taken[PLACE_BITS-1:0];
  end

  always_ff @(posedge clk) begin
    case (state)
      COUNTED: uses <= counted;
      READY:   if (skips) uses <= uses + 1'b1;
      default: place <= next_place;
    endcase
  end
endmodule
