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

  // A number of 24 bits.
  function automatic logic [23:0] number_of(input logic [23:0] plain, input logic [63:0] key);
    logic [11:0] left;
    logic [11:0] right;
    logic [11:0] next;
    left  = plain[23:12];
    right = plain[11:0];
    for (int unsigned i = 0; i < 4; i++) begin
      next  = left ^ number_round(right, key[16*i+:16]);
      left  = right;
      right = next;
    end
    return {left, right};
  endfunction

  // The way back.
  function automatic logic [23:0] plain_of(input logic [23:0] number, input logic [63:0] key);
    logic [11:0] left;
    logic [11:0] right;
    logic [11:0] last;
    left  = number[23:12];
    right = number[11:0];
    for (int unsigned i = 0; i < 4; i++) begin
      last  = right ^ number_round(left, key[16*(3-i)+:16]);
      right = left;
      left  = last;
    end
    return {left, right};
  endfunction

  // ---- Numbers of queues: the lowest seven bits are those of the place, so that a doorbell's slot names a row of places.
  // What is above them is permuted, in each row in another way: 17 bits, or, short, 13 with zeros above.

  // One round's word, of a half and the row.
  function automatic logic [8:0] queue_round(input logic [8:0] half, input logic [6:0] row, input logic [15:0] key);
    logic [11:0] word;
    word = number_round({3'd0, half} ^ {row, 5'd0}, key);
    return word[8:0] ^ {6'd0, word[11:9]};
  endfunction

  function automatic logic [23:0] queue_number_of(input logic [23:0] plain, input logic [63:0] key,
                                                  input logic is_short);
    logic [8:0] left;
    logic [8:0] right;
    left  = is_short ? {2'd0, plain[19:13]} : plain[23:15];
    right = is_short ? {3'd0, plain[12:7]} : {1'b0, plain[14:7]};
    for (int unsigned i = 0; i < 2; i++) begin
      left  = left ^ (queue_round(right, plain[6:0], key[32*i+:16]) & (is_short ? 9'h07f : 9'h1ff));
      right = right ^ (queue_round(left, plain[6:0], key[32*i+16+:16]) & (is_short ? 9'h03f : 9'h0ff));
    end
    return is_short ? {4'd0, left[6:0], right[5:0], plain[6:0]} : {left, right[7:0], plain[6:0]};
  endfunction

  // The way back.
  function automatic logic [23:0] queue_plain_of(input logic [23:0] number, input logic [63:0] key,
                                                 input logic is_short);
    logic [8:0] left;
    logic [8:0] right;
    left  = is_short ? {2'd0, number[19:13]} : number[23:15];
    right = is_short ? {3'd0, number[12:7]} : {1'b0, number[14:7]};
    for (int unsigned i = 0; i < 2; i++) begin
      right = right ^ (queue_round(left, number[6:0], key[32*(1-i)+16+:16]) & (is_short ? 9'h03f : 9'h0ff));
      left  = left ^ (queue_round(right, number[6:0], key[32*(1-i)+:16]) & (is_short ? 9'h07f : 9'h1ff));
    end
    return is_short ? {4'd0, left[6:0], right[5:0], number[6:0]} : {left, right[7:0], number[6:0]};
  endfunction

  // Whether a number is one that has a meaning of its own: 0, 1 and all ones are not drawn.
  function automatic logic is_reserved(input logic [23:0] number, input logic is_short);
    return number[19:1] == '0 && (is_short || number[23:20] == '0) || &number[19:0] && (is_short || &number[23:20]);
  endfunction
endpackage

`endif
