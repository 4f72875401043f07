(function () {
  "use strict";
  var words = document.body.dataset;
  document.querySelectorAll("pre.code").forEach(function (block) {
    var button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = words.copy;
    button.addEventListener("click", function () {
      function say(text) {
        button.textContent = text;
        setTimeout(function () { button.textContent = words.copy; }, 2000);
      }
      var range = document.createRange();
      range.selectNodeContents(block);
      if (!navigator.clipboard) {
        getSelection().removeAllRanges();
        getSelection().addRange(range);
        say(words.copyFailed);
        return;
      }
      navigator.clipboard.writeText(block.textContent).then(
        function () { say(words.copied); },
        function () {
          getSelection().removeAllRanges();
          getSelection().addRange(range);
          say(words.copyFailed);
        }
      );
    });
    block.parentNode.appendChild(button);
  });
  // a table that fits needs no stop of its own on the way through the page
  function stops() {
    document.querySelectorAll(".scroll").forEach(function (box) {
      var closed = box.closest("details:not([open])");
      if (closed || box.scrollWidth > box.clientWidth) { box.tabIndex = 0; } else { box.removeAttribute("tabindex"); }
    });
  }
  stops();
  addEventListener("resize", stops);
  document.addEventListener("toggle", stops, true);
  var opened = [];
  addEventListener("beforeprint", function () {
    opened = Array.prototype.slice.call(document.querySelectorAll("details:not([open])"));
    opened.forEach(function (one) { one.open = true; });
  });
  addEventListener("afterprint", function () {
    opened.forEach(function (one) { one.open = false; });
  });
})();
