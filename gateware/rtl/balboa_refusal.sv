// The driver's note that it refuses a page fault of a direction, until the request has its turn that met the fault: all before
// it have ended by themselves, so only the oldest one is compared. A note that fits no request stays until the next one, or
// until all objects end.
//
// Addresses are compared in a cycle of their own. While there is a note, a request ends no sooner than that.
module balboa_refusal (
    input  logic        clk,
    input  logic        rst_n,
    // All objects end: a note of before is of nobody.
    input  logic        clears,
    // The note: an address of the request.
    input  logic        tells,
    input  logic [47:0] told,
    output logic        has_note,
    // The oldest request under way.
    input  logic        is_under_way,
    input  logic [47:0] address,
    input  logic [27:0] length,
    // It ends in this cycle; it may, or it ends by its fault.
    input  logic        ends,
    output logic        may_end,
    output logic        is_refused
);
  logic [47:0] note;
  logic        is_compared;
  logic        is_of_note;

  assign may_end    = !has_note || (is_compared && !is_of_note);
  assign is_refused = has_note && is_compared && is_of_note;

  always_ff @(posedge clk) begin
    if (!rst_n) begin
      has_note    <= 1'b0;
      is_compared <= 1'b0;
    end else begin
      if (tells) has_note <= 1'b1;
      else if (is_refused || (clears && !is_under_way)) has_note <= 1'b0;
      is_compared <= is_under_way && !ends && !is_refused && !tells;
    end
  end

  always_ff @(posedge clk) begin
    if (tells) note <= told;
    is_of_note <= note - address < 48'(length);
  end
endmodule
