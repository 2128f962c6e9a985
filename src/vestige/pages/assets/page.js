(function () {
  var root = document.documentElement;
  root.classList.add('js');
  var byId = function (id) { return document.getElementById(id); };

  // The theme follows the system until the reader chooses.
  var theme = byId('theme');
  var isDark = function () {
    return root.dataset.theme ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  };
  var name = function () {
    var other = isDark() ? 'Light' : 'Dark';
    theme.textContent = other;
    theme.setAttribute('aria-label', 'Switch to ' + other.toLowerCase() + ' colours');
  };
  theme.addEventListener('click', function () { root.dataset.theme = isDark() ? 'light' : 'dark'; name(); });
  name();

  // Data tables are folded on screen only.
  addEventListener('beforeprint', function () {
    document.querySelectorAll('details').forEach(function (d) { d.open = true; });
  });

  // ROC: the thumb stops at the points of the curve, so that every readout is exact.
  var slider = byId('roc-in');
  if (!slider) return;
  var data = JSON.parse(byId('roc-readout').textContent);
  var pieces = byId('roc-out').children;
  var current = data.start;
  var dragging = false;
  var nearest = function (value) {
    var best = 0;
    data.position.forEach(function (p, i) {
      if (Math.abs(p - value) < Math.abs(data.position[best] - value)) best = i;
    });
    return best;
  };
  slider.addEventListener('pointerdown', function () { dragging = true; });
  addEventListener('pointerup', function () { dragging = false; });
  slider.addEventListener('input', function () {
    var value = +slider.value;
    var next = nearest(value);
    if (next === current && !dragging) {
      next = Math.max(0, Math.min(data.position.length - 1, current + Math.sign(value - data.position[current])));
    }
    current = next;
    slider.value = data.position[next];
    data.text[next].forEach(function (piece, i) { pieces[i].textContent = piece; });
    slider.setAttribute('aria-valuetext', data.text[next].join(''));
    byId('roc-cursor').setAttribute('transform', 'translate(' + data.x[next] + ')');
    byId('roc-dot').setAttribute('transform', 'translate(' + data.x[next] + ',' + data.y[next] + ')');
    byId('roc-whisker').setAttribute('d', data.low[next] === null ? '' : 'M' + data.x[next] + ' ' + data.low[next] + 'V' + data.high[next]);
  });
})();
