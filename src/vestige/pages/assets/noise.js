(function () {
  // One variable moves every picture; the numbers and the cursors follow.
  var slider = document.getElementById('mu-in');
  if (!slider) return;
  var data = JSON.parse(document.getElementById('noise-readout').textContent);
  var ticks = document.querySelectorAll('.ticks span');
  var set = function (k) {
    document.documentElement.style.setProperty('--k', k);
    Object.keys(data.text[k]).forEach(function (id) { document.getElementById(id).textContent = data.text[k][id]; });
    document.querySelectorAll('.mu-now').forEach(function (e) { e.textContent = data.text[k]['mu-out']; });
    document.querySelectorAll('.mu-cursor').forEach(function (e) { e.setAttribute('transform', 'translate(' + data.x[k] + ')'); });
    ticks.forEach(function (tick, i) { tick.classList.toggle('now', i === k); });
    slider.setAttribute('aria-valuetext', data.spoken[k]);
  };
  slider.addEventListener('input', function () { set(+slider.value); });
  document.querySelectorAll('.film .row').forEach(function (row) {
    row.addEventListener('click', function (event) {
      var box = row.getBoundingClientRect(), n = data.x.length;
      slider.value = Math.max(0, Math.min(n - 1, Math.floor((event.clientX - box.left) / box.width * n)));
      set(+slider.value);
    });
  });
  // A reload may keep the thumb where it was.
  set(+slider.value);
})();
