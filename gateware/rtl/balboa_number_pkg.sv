// Numbers of objects: a keyed permutation of {how often the object's place was used, the place}. So a number comes again
// only after its place was used as often as there are counts, and nobody without the key knows which is next.
`ifndef BALBOA_NUMBER_PKG_SV
`define BALBOA_NUMBER_PKG_SV

package balboa_number_pkg;
  // One round's word of a half.
  function automatic logic [11:0] number_round(input logic [11:0] half, input logic [15:0] key);
    logic [11:0] sum;
    logic [23:0] product;
    sum = half + {key[3:0], key[15:8]};
    product = 24'(sum) * 24'({key[7:0], 1'b1});
    return product[11:0] ^ {product[5:0], product[11:6]} ^ product[23:12];
  endfunction

  // A number of 24 bits, or, short, one of 20 bits with zeros above.
  function automatic logic [23:0] number_of(input logic [23:0] plain, input logic [63:0] key, input logic is_short);
    logic [11:0] left;
    logic [11:0] right;
    logic [11:0] next;
    logic [11:0] mask;
    mask  = is_short ? 12'h3ff : 12'hfff;
    left  = is_short ? {2'd0, plain[19:10]} : plain[23:12];
    right = is_short ? {2'd0, plain[9:0]} : plain[11:0];
    for (int unsigned i = 0; i < 4; i++) begin
      next  = (left ^ number_round(right, key[16*i+:16])) & mask;
      left  = right;
      right = next;
    end
    return is_short ? {4'd0, left[9:0], right[9:0]} : {left, right};
  endfunction

  // The way back.
  function automatic logic [23:0] plain_of(input logic [23:0] number, input logic [63:0] key, input logic is_short);
    logic [11:0] left;
    logic [11:0] right;
    logic [11:0] last;
    logic [11:0] mask;
    mask  = is_short ? 12'h3ff : 12'hfff;
    left  = is_short ? {2'd0, number[19:10]} : number[23:12];
    right = is_short ? {2'd0, number[9:0]} : number[11:0];
    for (int unsigned i = 0; i < 4; i++) begin
      last  = (right ^ number_round(left, key[16*(3-i)+:16])) & mask;
      right = left;
      left  = last;
    end
    return is_short ? {4'd0, left[9:0], right[9:0]} : {left, right};
  endfunction

  // Whether a number is one that has a meaning of its own: 0, 1 and all ones are not drawn.
  function automatic logic is_reserved(input logic [23:0] number, input logic is_short);
    return number[19:1] == '0 && (is_short || number[23:20] == '0) || &number[19:0] && (is_short || &number[23:20]);
  endfunction
endpackage

`endif
