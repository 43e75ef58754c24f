// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Collectives of values that are no tensors: anything that nlohmann/json can write and read back.
// They travel as CBOR, so numbers arrive to the last bit, also those that are not finite. Comes
// after communicator.hpp, beside collectives.hpp.
#pragma once

#include <accel/comm/communicator.hpp>
#include <accel/detail/error.hpp>

#include <nlohmann/json.hpp>

#include <concepts>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace accel {

/// A value that nlohmann/json writes and reads back: numbers, texts, containers and maps of them,
/// json itself, and types with `to_json` and `from_json`.
template <class T>
concept JsonObject = std::copy_constructible<T> && requires(const T& value, nlohmann::json json) {
  nlohmann::json(value);
  { json.template get<T>() } -> std::same_as<T>;
};

namespace detail {

template <JsonObject T>
[[nodiscard]] std::string bytes_of_object(const T& object) {
  std::string bytes;
  nlohmann::json::to_cbor(nlohmann::json(object), bytes);
  return bytes;
}

template <JsonObject T>
[[nodiscard]] T object_of_bytes(const std::string& bytes, int from) {
  try {
    return nlohmann::json::from_cbor(bytes).template get<T>();
  } catch (const nlohmann::json::exception& problem) {
    fail(ErrorCategory::collective,
         "accel: the object of rank {} is not of the type that this rank asked for; give every "
         "rank the same type. Cause: {}",
         from, problem.what());
  }
}

/// Rank `root`'s bytes on every rank.
[[nodiscard]] std::string broadcast_bytes(const Communicator& communicator,
                                          const std::string& bytes, int root,
                                          const CallSite& where);

}  // namespace detail

/// Every rank's object, in rank order. Every rank must call this, with the same type.
template <JsonObject T>
[[nodiscard]] std::vector<T> all_gather_object(const Communicator& communicator, const T& object,
                                               const CallSite& where = CallSite::current()) {
  std::string mine;
  communicator.together([&] { mine = detail::bytes_of_object(object); }, ErrorCategory::collective,
                        "another rank's object cannot be written");
  std::vector<T> objects;
  for (const auto& bytes : communicator.all_gather_bytes(mine, where))
    objects.push_back(detail::object_of_bytes<T>(bytes, static_cast<int>(objects.size())));
  return objects;
}

/// Rank `from_process`'s object on every rank. Every rank must call this, with the same type; the
/// others' object does not matter.
template <JsonObject T>
[[nodiscard]] T broadcast_object(const Communicator& communicator, const T& object,
                                 int from_process = 0,
                                 const CallSite& where = CallSite::current()) {
  std::string bytes;
  communicator.together(
      [&] {
        if (communicator.rank() == from_process) bytes = detail::bytes_of_object(object);
      },
      ErrorCategory::collective, "the object to broadcast cannot be written");
  return detail::object_of_bytes<T>(
      detail::broadcast_bytes(communicator, bytes, from_process, where), from_process);
}

}  // namespace accel
