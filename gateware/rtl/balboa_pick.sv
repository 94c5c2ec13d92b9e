// The next of many that are due, behind the last one whose turn it was: they go round. It looks at rows of them first, so that
// the way through many is not much longer than through few.
module balboa_pick #(
    // A power of two.
    parameter int unsigned Places = 128,
    localparam int unsigned PLACE_BITS = $clog2(Places)
) (
    input  logic [    Places-1:0] due,
    input  logic [PLACE_BITS-1:0] last,
    output logic                  is_due,
    output logic [PLACE_BITS-1:0] next
);
  localparam int unsigned COLUMN_BITS = PLACE_BITS / 2;
  localparam int unsigned COLUMNS = 1 << COLUMN_BITS;
  localparam int unsigned ROWS = Places / COLUMNS;
  localparam int unsigned ROW_BITS = PLACE_BITS - COLUMN_BITS;
  localparam logic [COLUMNS-1:0] SECOND = 2;

  logic [       ROWS-1:0][COLUMNS-1:0] rows;
  logic [       ROWS-1:0]              is_row_due;
  logic [    COLUMNS-1:0]              behind;
  logic [    COLUMNS-1:0]              at_row;
  logic [   ROW_BITS-1:0]              last_row;
  logic [   ROW_BITS-1:0]              row;
  logic [COLUMN_BITS-1:0]              column;

  assign rows     = due;
  assign last_row = last[PLACE_BITS-1:COLUMN_BITS];
  // The rest of the last one's row goes first, the row's beginning last.
  assign behind   = rows[last_row] & -(SECOND << last[COLUMN_BITS-1:0]);
  assign is_due   = is_row_due != '0;
  assign next     = {row, column};

  always_comb begin
    for (int i = 0; i < ROWS; i++) is_row_due[i] = rows[i] != '0;
    row = '0;
    for (int i = ROWS - 1; i >= 0; i--) if (is_row_due[i]) row = ROW_BITS'(i);
    for (int i = ROWS - 1; i >= 0; i--) if (is_row_due[i] && ROW_BITS'(i) > last_row) row = ROW_BITS'(i);
    if (behind != '0) row = last_row;
    at_row = behind != '0 ? behind : rows[row];
    column = '0;
    for (int i = COLUMNS - 1; i >= 0; i--) if (at_row[i]) column = COLUMN_BITS'(i);
  end
endmodule
