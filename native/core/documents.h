// Documents in tokens: where separators end them, and which one each token of a sequence belongs to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock {

// The places behind the separators, one or more tokens of the same bits each, in tokens of `item` bytes (1, 2, 4 or 8).
// Separators do not overlap, the leftmost counts. None begins before token `from`, which becomes the first token at which one
// could begin that these tokens do not show. `out` must have a place for all of them: as many as there are tokens is enough.
// Gives how many.
std::size_t find_document_ends(std::span<const std::byte> tokens, std::size_t item, std::span<const std::byte> separator,
                               std::size_t& from, std::span<std::int64_t> out);

// Sequences of `length` tokens of `item` bytes (1, 2, 4 or 8), one after the other. A document ends with the separator, one or
// more tokens of the same bits, which belongs to it; separators do not overlap, the leftmost counts. There may be none. A
// document also ends before each of the `breaks`, offsets of tokens in all sequences that rise: there tokens meet that are no
// neighbours in the data. segment gets the number of a token's document within its sequence, position its place in the document
// as far as the sequence shows it.
void mark_documents(std::span<const std::byte> tokens, std::size_t item, std::size_t length, std::span<const std::byte> separator,
                    std::span<const std::int64_t> breaks, std::int32_t* segment, std::int32_t* position);

}  // namespace penstock
