// A set of places of a table. It is a memory of rows, one bit of a place each; registers only say which rows are not empty.
// So it is empty at once, and many rows cost little. In a cycle one row changes.
module balboa_set #(
    parameter int unsigned Places = 4096,
    // A place is {its column, its row}.
    parameter int unsigned RowBits = 7,
    localparam int unsigned PLACE_BITS = $clog2(Places),
    localparam int unsigned COLUMN_BITS = PLACE_BITS - RowBits,
    localparam int unsigned COLUMNS = 1 << COLUMN_BITS,
    localparam int unsigned ROWS = 1 << RowBits
) (
    input  logic                  clk,
    input  logic                  rst_n,
    input  logic                  clears,
    // Places of a row that are put in, and taken out before that.
    input  logic [   RowBits-1:0] row,
    input  logic [   COLUMNS-1:0] puts,
    input  logic [   COLUMNS-1:0] takes,
    // Whether a place is in, and what else of its row is.
    input  logic [PLACE_BITS-1:0] asked,
    output logic                  is_in,
    output logic [   COLUMNS-1:0] asked_row,
    // Whether any is in, and one that is: they go round, as each is passed by.
    output logic                  has_any,
    output logic [PLACE_BITS-1:0] next,
    input  logic                  passes
);
  logic [    COLUMNS-1:0] rows        [ROWS];
  logic [       ROWS-1:0] is_row_used;
  logic [    COLUMNS-1:0] now;
  logic [    COLUMNS-1:0] behind;
  // The row whose turn it is, and its columns that were not passed by; then the next row's turn begins.
  logic [    RowBits-1:0] row_now;
  logic [    RowBits-1:0] row_next;
  logic [    COLUMNS-1:0] left;
  logic [    COLUMNS-1:0] rest;
  logic [    COLUMNS-1:0] due;
  logic [COLUMN_BITS-1:0] column;

  assign now       = is_row_used[row] ? rows[row] : '0;
  assign behind    = (now & ~takes) | puts;
  assign asked_row = is_row_used[asked[RowBits-1:0]] ? rows[asked[RowBits-1:0]] : '0;
  assign is_in     = asked_row[asked[PLACE_BITS-1:RowBits]];
  assign rest      = is_row_used[row_now] ? rows[row_now] & left : '0;
  assign due       = rest != '0 ? rest : rows[row_next];
  assign next      = {column, rest != '0 ? row_now : row_next};
  always_comb begin
    column = '0;
    for (int i = COLUMNS - 1; i >= 0; i--) if (due[i]) column = COLUMN_BITS'(i);
  end

  balboa_pick #(
      .Places(ROWS)
  ) turns (
      .due   (is_row_used),
      .last  (row_now),
      .is_due(has_any),
      .next  (row_next)
  );

  always_ff @(posedge clk) begin
    if (!rst_n || clears) is_row_used <= '0;
    else if ((puts | takes) != '0) is_row_used[row] <= behind != '0;
  end

  always_ff @(posedge clk) begin
    if ((puts | takes) != '0) rows[row] <= behind;
  end

  always_ff @(posedge clk) begin
    if (!rst_n) begin
      row_now <= '0;
      left    <= '1;
    end else if (passes) begin
      row_now <= next[RowBits-1:0];
      if (rest == '0) left <= '1;
      left[column] <= 1'b0;
    end
  end
endmodule
