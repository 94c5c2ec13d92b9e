// How many users each place of a table has. What is changed is there some cycles later; nobody asks before that.
//
// A place whose count has flipped has users, and keeps that count: what is in use is not freed for it.
module balboa_users #(
    parameter int unsigned Places = 128,
    parameter int unsigned Users = 128,
    localparam int unsigned PLACE_BITS = $clog2(Places),
    localparam int unsigned USER_BITS = $clog2(Users + 1)
) (
    input  logic                  clk,
    input  logic                  rst_n,
    // Whether a place has users: that stands from the next cycle on. What was read has flipped.
    input  logic                  asks,
    input  logic [PLACE_BITS-1:0] asked,
    output logic                  is_used,
    output logic                  is_flipped,
    // A place begins without users.
    input  logic                  starts,
    input  logic [PLACE_BITS-1:0] started,
    // Two places, which may be the same, get a user each, or lose one.
    input  logic                  gains,
    input  logic                  loses,
    input  logic [PLACE_BITS-1:0] first,
    input  logic [PLACE_BITS-1:0] second,
    // The count that was to change in this cycle has flipped.
    output logic                  has_lost
);
  typedef enum logic [2:0] {
    IDLE,
    FIRST_READ,
    FIRST_WRITE,
    SECOND_READ,
    SECOND_WRITE
  } state_t;

  state_t                  state;
  logic                    loses_one;
  logic   [PLACE_BITS-1:0] first_left;
  logic   [PLACE_BITS-1:0] second_left;
  logic   [PLACE_BITS-1:0] place;
  logic                    is_second;
  logic                    writes;
  logic   [ USER_BITS-1:0] count;

  assign is_second = state == SECOND_READ || state == SECOND_WRITE;
  assign writes    = state == FIRST_WRITE || state == SECOND_WRITE;
  assign place     = is_second ? second_left : first_left;
  assign is_used   = count != '0 || is_flipped;
  assign has_lost  = writes && is_flipped;

  balboa_table #(
      .Width(USER_BITS),
      .Depth(Places)
  ) counts (
      .clk,
      .write_enable (starts || (writes && !is_flipped)),
      .write_address(starts ? started : place),
      .write_data   (starts ? '0 : loses_one ? count - 1'b1 : count + 1'b1),
      .read_enable  (asks || state == FIRST_READ || state == SECOND_READ),
      .read_address (asks ? asked : place),
      .read_data    (count),
      .is_flipped
  );

  always_ff @(posedge clk) begin
    if (!rst_n) begin
      state <= IDLE;
    end else begin
      case (state)
        FIRST_READ:  state <= FIRST_WRITE;
        FIRST_WRITE: state <= SECOND_READ;
        SECOND_READ: state <= SECOND_WRITE;
        default:     state <= gains || loses ? FIRST_READ : IDLE;
      endcase
    end
  end

  always_ff @(posedge clk) begin
    if (gains || loses) begin
      loses_one   <= loses;
      first_left  <= first;
      second_left <= second;
    end
  end
endmodule
